"""Jobs that are stopped as a whole and started again, from a checkpoint or on a standby.

    training -> detection -> queue -> start -> training
                    ^                   |
                    +--- a fault -------+

What happens in between, by what is hit:

- in detection: the earlier of the two detections ends it, as all of the job is replaced anyway;
- in the queue, or while it waits for slots: nothing runs, so only the loss of a node counts, by its slots;
- while it starts: the start has failed, and all begins anew with the detection of the new fault.

Which nodes a job gets is decided when it leaves the queue: one that is repaired by then is there again.  It takes
what it has left and free slots, up to what it had at the beginning; the largest of its sizes that fits, so it
shrinks by hand, as Megatron's users do.  With less than its minimum it waits, and keeps what it has.

Slots that come back go to the task that was hit first (Unicron, arXiv:2401.00134, evaluation; recalled, not read).
One that runs with less than it had restarts by hand to take them, if by the time of its next fault, at the rate
seen so far, it will have done more; it stores a checkpoint before that, so nothing is done twice.  Else it takes
them when it has to restart anyway.  A slow node is kept: the job runs at its speed, as all wait for the slowest.
"""

from __future__ import annotations

from typing import ClassVar

from unicorn_mgr.simulator.costs import Costs
from unicorn_mgr.simulator.history import Doing
from unicorn_mgr.simulator.policies.fluid import Fluid, Job, Life
from unicorn_mgr.simulator.policies.shares import best_sizes
from unicorn_mgr.simulator.scenario import Kind, Scenario


class Restart(Fluid):
    """What they have in common."""

    rigid: ClassVar[bool] = False
    """A job has all of its slots or none."""

    def detection(self, kind: Kind, costs: Costs) -> float:
        """Seconds until it is known."""
        return costs.node_loss_seen_seconds if kind is Kind.NODE else costs.fast_detection_seconds

    def queue(self, costs: Costs) -> float:
        """Seconds until the job gets its nodes."""
        return costs.queue_seconds

    def start(self, life: Life, job: Job, waited: bool) -> float:  # noqa: ARG002 - others start quicker without
        """Seconds from there until it trains; `waited` for slots before."""
        return life.costs.setup_seconds + life.from_storage(job)

    def loses(self, life: Life, job: Job, number: int) -> None:
        """What is done twice."""
        life.loses_unsaved(job, number)

    def hit(self, life: Life, job: Job, number: int, seats: list[int]) -> None:  # noqa: ARG002 - all of it stops
        """It stops; where nothing runs, nothing breaks."""
        kind = life.faults[number].kind
        if kind is Kind.SLOW:
            return
        seconds = self.detection(kind, life.costs)
        if job.doing is Doing.TRAINING:
            job.stops += 1
            self.loses(life, job, number)
            self._undetected(life, job, number, seconds)
        elif job.doing is Doing.DETECTION:
            self._undetected(life, job, job.stopped_by, min(seconds, job.ends - life.now))
        elif job.doing is Doing.TRANSITION and job.starting:
            self._undetected(life, job, number, seconds)
        else:
            life.tells(job)

    def _undetected(self, life: Life, job: Job, number: int, seconds: float) -> None:
        job.starting = False
        life.stops(job, Doing.DETECTION, number)
        life.later(job, seconds, lambda: self._queues(life, job, number))

    def _queues(self, life: Life, job: Job, number: int) -> None:
        life.stops(job, Doing.TRANSITION, number)
        seconds = self.queue(life.costs)
        if seconds:
            life.later(job, seconds, lambda: self._places(life, job))
        else:
            self._places(life, job)

    def _places(self, life: Life, job: Job, waited: bool = False) -> None:
        """It gets what there is, and starts; or waits."""
        size = self._reach(life, job)
        if not size:
            life.waits(job)
            return
        there = [seat for seat, place in enumerate(job.seats) if place is not None]
        life.keeps(job, there[:size])
        life.takes(job, size - len(job.seats))
        life.stops(job, Doing.TRANSITION, job.stopped_by)
        job.starting = True
        life.later(job, self.start(life, job, waited), lambda: self._trains(life, job))
        if len(there) > size:
            self.offered(life)

    def _reach(self, life: Life, job: Job) -> int:
        """The size that it can have now."""
        size = job.work.useful(min(job.wanted, job.present + life.cluster.free))
        return size if size == job.wanted or not self.rigid else 0

    def _trains(self, life: Life, job: Job) -> None:
        job.starting = False
        life.trains(job, len(job.seats))
        self.offered(life)

    def offered(self, life: Life) -> None:
        """Who was hit first takes what is free, if that is of use to it."""
        for job in sorted(life.jobs, key=lambda j: (j.hit_at, j.number)):
            if not life.cluster.free or job.present >= job.wanted:
                continue
            if job.doing is Doing.WAITING and self._reach(life, job):
                self._places(life, job, waited=True)
            elif job.doing is Doing.TRAINING and self._pays(life, job):
                # By hand, after a checkpoint: nothing is lost but time.
                life.takes(job, self._reach(life, job) - len(job.seats))
                life.saves(job)
                self._queues(life, job, job.blame[0])

    def _pays(self, life: Life, job: Job) -> bool:
        """Whether a restart with more slots does more until the next fault than going on as it is."""
        size = self._reach(life, job)
        until_fault = life.now / max(1, job.stops)
        still = self.queue(life.costs) + self.start(life, job, waited=False)
        return job.work.rate(size) * (until_fault - still) > job.work.rate(len(job.seats)) * until_fault


class Megatron(Restart):
    """Restart from the last checkpoint in storage; faults are found by the framework's timeout.

    Of an ordinary restart's 68 min, 30 are the timeout of a collective, 9 the queue, 14 environment and CUDA, 15 the
    work since the last checkpoint (Unicron, arXiv:2401.00134, introduction; second-hand).  The last is drawn here by
    when the fault comes: half of `Work.checkpoint_seconds` on average.  Only the loss of a node is seen earlier, by
    the cluster's manager after 5.7 s (the same, evaluation of detection; recalled, not read).  Parameters: `Costs`.
    """

    name = "megatron"

    def detection(self, kind: Kind, costs: Costs) -> float:
        """By timeout, but for nodes."""
        return costs.node_loss_seen_seconds if kind is Kind.NODE else costs.timeout_seconds


class RestartFast(Restart):
    """The same restart where processes are watched: what good detection alone is worth.

    Detection as ByteRobust's inspections (arXiv:2509.16293, section 4.1, table 3: 2 to 60 s instead of the timeout),
    or Unicron's supervision of processes (1.8 s; recalled, not read).
    """

    name = "restart-fast"


class Waits(Restart):
    """The hit job waits until it can have all of its slots again; nobody shrinks.

    What gang schedulers do with jobs of a fixed size (e.g. Slurm with --requeue, Kubernetes' JobSet).  Detection and
    restart as `restart-fast`, so that the two differ by the waiting alone.
    """

    name = "waits"
    rigid = True


class Varuna(Restart):
    """Restarts with fewer nodes from a checkpoint, and computes less than Megatron at any time.

    `efficiency` is not Varuna's own figure.  Unicron reports 4.8 times its weighted work on trace a and 1.2 times
    Megatron's (second-hand).  As both restart, 1.2 / 4.8 is what is left of Megatron's speed (derived).  Varuna
    (EuroSys'22) itself measured other models on other machines, and would not agree.
    """

    name = "varuna"
    efficiency = 1.2 / 4.8


class Spares(Restart):
    """Fixed hot spares: `Scenario.spares` nodes stay out of the jobs, and one takes a lost node's place.

    As ByteRobust (arXiv:2509.16293): standbys that wait at a barrier (section 6.2), restart in pods that live for
    whatever is not the node's fault (section 6.1: 46 to 65 s), checkpoints of each step in peers' memory (section 7),
    so that the open step is all that is lost.  A node that computes slowly is evicted once that is noticed, if a
    spare is there (section 5).  Repaired nodes become spares.

    What stands still is noticed by its lack of traffic for ten minutes (section 4).

    Without a spare the job waits until a node comes back, and then pays for pods that are new: its jobs have one
    layout, and the paper tells of rescheduling what is missing, never of going on with less.
    """

    name = "spares"
    rigid = True

    slowness_min: ClassVar[float] = 1.1
    """What is slower than this is noticed: steps are up to a tenth longer without a reason (Unicron; recalled)."""
    silence_seconds: ClassVar[float] = 600.0
    """Without any traffic, after which a job counts as hung."""

    def first(self, scenario: Scenario) -> list[int]:
        """The optimum without the spares."""
        return best_sizes(scenario.jobs, scenario.capacity - scenario.spares * scenario.slots)

    def detection(self, kind: Kind, costs: Costs) -> float:
        """By inspections, but for what stands still."""
        return self.silence_seconds if kind is Kind.HANG else super().detection(kind, costs)

    def queue(self, costs: Costs) -> float:  # noqa: ARG002 - like all others'
        """None: its pods live, and standbys are there."""
        return 0.0

    def start(self, life: Life, job: Job, waited: bool) -> float:  # noqa: ARG002 - like all others'
        """A standby's, or that of new pods."""
        return life.costs.setup_seconds if waited else life.costs.standby_seconds

    def loses(self, life: Life, job: Job, number: int) -> None:
        """The open step."""
        life.loses_open(job, number)

    def hit(self, life: Life, job: Job, number: int, seats: list[int]) -> None:
        """Slow nodes are noticed, too."""
        fault = life.faults[number]
        if fault.kind is not Kind.SLOW:
            super().hit(life, job, number, seats)
        elif fault.slowness > self.slowness_min:
            life.schedule(life.costs.fast_detection_seconds, lambda: self._evicts(life, number))

    def _evicts(self, life: Life, number: int) -> None:
        """Nodes that are still slow by this fault are swapped for spares, until they are repaired."""
        fault = life.faults[number]
        for node in fault.nodes:
            seats = life.cluster.owners(node)
            owners = [life.jobs[n] for n in sorted({job for job, _ in seats})]
            still = any(by == number for _, by in life.slow.get(node, []))
            spare = life.cluster.free >= len(seats)
            if not (still and owners and spare and all(job.doing is Doing.TRAINING for job in owners)):
                continue
            life.isolate(node, number, fault.at + fault.repair_seconds - life.now, {})
            for job in owners:
                job.blame.append(number)
                job.hit_at = min(job.hit_at, life.now)
                self.loses(life, job, number)
                self._queues(life, job, number)
