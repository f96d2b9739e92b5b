"""Heartbeats and samples: kept here, never in the core, which only hears of changes of meaning.

5,000 agents would be 5,000 events a second, each of them durable.  Pure, like the core: time
comes in as `now`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.coordinator.state import ClusterState, Job, NodePhase
from unicorn_mgr.effects.coordinator import JobHalted, JobProgressed, NodeHeard, NodeSilent
from unicorn_mgr.messages import Sample
from unicorn_mgr.phases import WAITS_FOR_OTHERS, Phase

PROGRESS_SECONDS = 10.0
"""Between two notes of where a job is."""

INSIDE_A_STEP = frozenset({Phase.COMPUTE, Phase.UPDATE, Phase.TRANSFER})
"""Where workers of one replica wait for each other in collectives that only torch knows of."""

_HEARD = (NodePhase.UP, NodePhase.DRAINING, NodePhase.QUARANTINED)
_WATCHED = (*_HEARD, NodePhase.SILENT)

Change = NodeSilent | NodeHeard | JobHalted | JobProgressed


@dataclass(slots=True)
class Liveness:
    """The newest heartbeat of each node and the newest sample of each worker."""

    settings: Settings
    beats: dict[str, float] = field(default_factory=dict)
    samples: dict[str, tuple[float, Sample]] = field(default_factory=dict)
    """Per worker: when its sample came, and the sample."""
    _told: dict[str, tuple[float, int]] = field(default_factory=dict)

    def start(self, state: ClusterState, now: float) -> None:
        """A coordinator has begun: every lease starts anew."""
        self.beats = {name: now for name, node in sorted(state.nodes.items()) if node.phase in _WATCHED}

    def beat(self, node: str, samples: tuple[Sample, ...], now: float) -> None:
        """A node has been heard."""
        self.beats[node] = now
        for sample in samples:
            self.samples[sample.worker] = (now, sample)

    def credit(self, seconds: float) -> None:
        """The coordinator itself has slept: nobody's silence in that time counts."""
        self.beats = {name: at + seconds for name, at in self.beats.items()}
        self.samples = {name: (at + seconds, sample) for name, (at, sample) in self.samples.items()}

    def forget(self, worker: str) -> None:
        """A worker is no more."""
        self.samples.pop(worker, None)

    def forget_job(self, job: str) -> None:
        """A job has ended: another may take its name, and begins before the first step.

        Processes on nodes that are lost never say that they have ended.
        """
        self._told.pop(job, None)
        self.samples = {name: of for name, of in self.samples.items() if name.rpartition("/")[0] != job}

    def poll(self, state: ClusterState, now: float) -> Iterator[Change]:
        """Changes of meaning since the last poll."""
        yield from self._nodes(state, now)
        for job in state.jobs.values():
            if job.members and not job.over:
                yield from self._progress(job, now)
                yield from self._halted(state, job, now)

    def _nodes(self, state: ClusterState, now: float) -> Iterator[Change]:
        for name, node in sorted(state.nodes.items()):
            silent = now - self.beats.setdefault(name, now)
            if node.phase in _HEARD and silent > self.settings.lease_seconds:
                yield NodeSilent(name, silent)
            elif node.phase is NodePhase.SILENT and silent < self.settings.lease_seconds:
                yield NodeHeard(name)

    def _progress(self, job: Job, now: float) -> Iterator[Change]:
        seen = [self.samples[m][1] for m in job.members if m in self.samples]
        if not seen:
            return
        committed = max(s.committed for s in seen)
        told_at, told = self._told.get(job.name, (float("-inf"), -2))
        if committed > told and now - told_at >= PROGRESS_SECONDS:
            self._told[job.name] = (now, committed)
            yield JobProgressed(job.name, committed, max(s.step_seconds for s in seen), max(s.backed_up for s in seen))

    def _halted(self, state: ClusterState, job: Job, now: float) -> Iterator[Change]:
        """All members on nodes that are heard wait, and have waited for too long, for those that are not."""
        members = job.living_members()
        heard = [w for w in members if state.nodes[w.node].phase is not NodePhase.SILENT]
        if job.halted or not heard or len(heard) == len(members):
            return
        size = job.spec.replica_size if job.spec.replica else 1
        cut = {w.seat // size for w in members if w not in heard} if size > 1 else set()
        waits = [self._waits_for(w.name, now, inside=w.seat // size in cut) for w in heard]
        whole = any(w.seat // size not in cut for w in heard)
        if min(waits) >= halt_limit(self.settings, job.step_seconds, inside=bool(cut), whole=whole):
            yield JobHalted(job.name, min(waits))

    def _waits_for(self, worker: str, now: float, *, inside: bool) -> float:
        """Seconds for which a worker has done nothing but wait for others.

        `inside`: another of its replica is not heard.  It may then wait for that inside the user's forward, backward
        or update; nothing there takes as long as is waited before this counts.
        """
        at, sample = self.samples.get(worker, (now, Sample()))
        if Phase(sample.phase) not in WAITS_FOR_OTHERS and not (inside and Phase(sample.phase) in INSIDE_A_STEP):
            return 0.0
        return sample.quiet_seconds + now - at


def halt_limit(settings: Settings, step_seconds: float, *, inside: bool, whole: bool = True) -> float:
    """Seconds that members wait for one on a silent node before their job is halted.

    `inside`: some wait inside the user's code for one of their own replica.  Whether they wait or compute nobody sees,
    so that what others see of it counts: `whole` replicas, which have come to the end of the step.
    """
    factor = settings.halt_factor if whole else max(settings.halt_factor, settings.stall_factor)
    limit = max(settings.halt_seconds, factor * step_seconds)
    if inside and not step_seconds:
        return max(limit, settings.fence_seconds)  # a first step may compile for long
    return limit
