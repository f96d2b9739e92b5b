"""Jobs whose replicas go on without one that is hit, and take it in again when it is whole.

    training -> detection -> stall -> training with the replicas that are whole
                    ^           |                |   a replica is mended
                    +- a fault -+                +-> rejoin -> training

A replica that is hit is broken until all of its seats have a slot again and its processes have started there.  What
happens at a bad moment:

- in detection: all that is broken has to be known before the others can go on, so the later detection ends it;
- in the stall or the rejoin: it fails, and begins anew with the detection of the new fault;
- to a replica that is broken already: it is mended from the beginning; the others don't notice;
- all replicas broken: nobody has the state any more, and the job begins at its last checkpoint.

With less than its minimum a job waits, and keeps what it has.  Free slots go to who was hit first, as long as they
make a replica whole.  Nobody does anything about a slow node: replicas meet in every step, and wait for the slowest.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from unicorn_mgr.simulator.costs import Costs
from unicorn_mgr.simulator.history import Doing
from unicorn_mgr.simulator.policies.fluid import Fluid, Job, Life
from unicorn_mgr.simulator.scenario import Kind


class Replicas(Fluid):
    """What they have in common."""

    @abstractmethod
    def detection(self, kind: Kind, costs: Costs) -> float:
        """Seconds until it is known."""

    @abstractmethod
    def stall(self, life: Life, job: Job, kind: Kind) -> float:
        """Seconds from there until the others go on."""

    @abstractmethod
    def mending(self, life: Life, job: Job, replica: int, *, moved: bool) -> float:
        """Seconds until a replica that has all slots may join; `moved`: some are others than before."""

    @abstractmethod
    def rejoin(self, life: Life, job: Job) -> float:
        """Seconds for which all stand still when it does."""

    def loses(self, life: Life, job: Job, number: int, share: float) -> None:  # noqa: ARG002 - less, if less is lost
        """What is done twice, where this share of those who computed is broken."""
        life.loses_open(job, number)

    def hit(self, life: Life, job: Job, number: int, seats: list[int]) -> None:
        """Of a broken connection nobody dies; else replicas break."""
        kind = life.faults[number].kind
        if kind is Kind.SLOW:
            return
        hit = sorted({seat // job.work.replica for seat in seats})
        computing = [replica for replica in hit if replica not in job.broken]
        if computing and job.doing is Doing.TRAINING:
            self.loses(
                life, job, number, len(computing) * job.work.replica / whole_size(job) if kind is not Kind.LINK else 0.0
            )
        if kind is not Kind.LINK:
            self._breaks(life, job, hit)
        if computing and not whole_size(job):
            life.loses_unsaved(job, number)
        if computing and job.doing is not Doing.WAITING:
            self._undetected(life, job, number)
        else:
            life.tells(job)
        if kind is not Kind.LINK:
            self.offered(life)

    def _breaks(self, life: Life, job: Job, replicas: list[int]) -> None:
        """Who has all slots is mended there; who has not waits for some."""
        for replica in replicas:
            job.broken[replica] = life.token()
            if all(job.seats[seat] is not None for seat in seats_of(job, replica)):
                self._mends(life, job, replica, moved=False)

    def _undetected(self, life: Life, job: Job, number: int) -> None:
        seconds = self.detection(life.faults[number].kind, life.costs)
        if job.doing is Doing.DETECTION:
            number, seconds = job.stopped_by, max(seconds, job.ends - life.now)
        life.stops(job, Doing.DETECTION, number)
        life.later(job, seconds, lambda: self.found(life, job, number))

    def found(self, life: Life, job: Job, number: int) -> None:
        """What is broken is known."""
        life.stops(job, Doing.TRANSITION, number)
        life.later(job, self.stall(life, job, life.faults[number].kind), lambda: self._goes_on(life, job))

    def _goes_on(self, life: Life, job: Job) -> None:
        if job.work.rate(whole_size(job)):
            life.trains(job, whole_size(job))
        else:
            life.waits(job)

    def _mends(self, life: Life, job: Job, replica: int, *, moved: bool) -> None:
        token = job.broken[replica]
        life.schedule(self.mending(life, job, replica, moved=moved), lambda: self._mended(life, job, token))

    def _mended(self, life: Life, job: Job, token: int) -> None:
        replica = next((r for r, current in job.broken.items() if current == token), None)
        if replica is None:
            return  # hit again, or given up
        del job.broken[replica]
        if job.doing is Doing.TRAINING or (job.doing is Doing.WAITING and job.work.rate(whole_size(job))):
            self.regroups(life, job)

    def regroups(self, life: Life, job: Job) -> None:
        """All that is whole meets anew."""
        life.stops(job, Doing.TRANSITION, life.blamed(job))
        life.later(job, self.rejoin(life, job), lambda: self._goes_on(life, job))

    def offered(self, life: Life) -> None:
        """Who was hit first makes replicas whole, those first that lack least."""
        for job in sorted(life.jobs, key=lambda j: (j.hit_at, j.number)):
            if not life.cluster.free:
                return
            lacking = {replica: sum(job.seats[s] is None for s in seats_of(job, replica)) for replica in job.broken}
            for replica in sorted(lacking, key=lambda r: (lacking[r], r)):
                if 0 < lacking[replica] <= life.cluster.free:
                    life.fills(job, seats_of(job, replica))
                    job.broken[replica] = life.token()
                    life.tells(job)
                    self._mends(life, job, replica, moved=True)


def seats_of(job: Job, replica: int) -> range:
    """Of one of its replicas."""
    return range(replica * job.work.replica, (replica + 1) * job.work.replica)


def whole_size(job: Job) -> int:
    """Slots of replicas that take part."""
    return (len(job.seats) // job.work.replica - len(job.broken)) * job.work.replica


class Elastic(Replicas):
    """Elastic data parallelism per job, without a planner between jobs.

    As torchft (github.com/meta-pytorch/torchft, its README and benchmarks of this project) and FT-HSDP
    (arXiv:2602.00277, abstract; the rest second-hand): a failed replica's group is relaunched by its launcher, the
    others throw the open step away and go on after a stall, which contains their detection of whatever ends or
    breaks.  Only of a process that stands still nobody hears anything, until a collective's timeout.  A replica that is
    mended stops all others for its rejoin.  With all replicas lost a job begins at its last checkpoint in storage.

    Parameters: `Costs.elastic_stall_seconds`, `elastic_rejoin_seconds`; a relaunch takes `setup_seconds`.
    """

    name = "elastic"

    timeout_seconds: ClassVar[float] = 60.0
    """Of its collectives: torchft's own default, TORCHFT_TIMEOUT_SEC."""

    def detection(self, kind: Kind, costs: Costs) -> float:
        """Within the stall, but for what stands still."""
        return self.timeout_seconds if kind is Kind.HANG else self._noticing(costs)

    def stall(self, life: Life, job: Job, kind: Kind) -> float:  # noqa: ARG002 - the same for all jobs
        """What is left of it."""
        whole = life.costs.elastic_stall_seconds
        return whole if kind is Kind.HANG else whole - self._noticing(life.costs)

    def _noticing(self, costs: Costs) -> float:
        return min(costs.fast_detection_seconds, costs.elastic_stall_seconds)

    def mending(self, life: Life, job: Job, replica: int, *, moved: bool) -> float:  # noqa: ARG002 - anywhere
        """Relaunched; from storage, if nobody else has the state."""
        seconds = life.costs.setup_seconds
        return seconds if whole_size(job) else seconds + life.from_storage(job)

    def rejoin(self, life: Life, job: Job) -> float:  # noqa: ARG002 - the same for all jobs
        """It takes the state from another."""
        return life.costs.elastic_rejoin_seconds


class Bamboo(Elastic):
    """Redundant computation on other nodes: it goes on at once, and computes less than Megatron at any time.

    `efficiency` is not Bamboo's own figure.  Unicron reports 4.6 times its weighted work on trace a (recalled, not
    read), where few faults happen, so nearly all of that is speed: 1 / 4.6 (derived).  Bamboo (NSDI'23) itself
    measured other models on other machines, and would not agree.
    """

    name = "bamboo"
    efficiency: ClassVar[float] = 1 / 4.6


class Oobleck(Elastic):
    """Pipelines of several sizes, prepared ahead: it goes on at once, and computes less than Megatron at any time.

    `efficiency` is not Oobleck's own figure.  Unicron reports 3.7 times its weighted work on trace a (second-hand,
    which trace is recalled), where few faults happen, so nearly all of that is speed: 1 / 3.7 (derived).  Oobleck
    (SOSP'23) itself measured other models on other machines, and would not agree.
    """

    name = "oobleck"
    efficiency: ClassVar[float] = 1 / 3.7
