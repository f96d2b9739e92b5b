"""Simple rules by which slots are shared between jobs, healed as we heal: only the allocation differs from ours.

Baselines of Unicron's evaluation (arXiv:2401.00134; second-hand): equal parts, by weight, by size of the model.
Minima are kept, for plain splits let large models starve, which frees slots and flatters the rule.  The rule is
applied again whenever nodes are lost or come back: who has more than its part gives replicas away at once and
regroups, who has less takes them in once they have started.

Costs are ours, and so is the order of things: the others go on after a regrouping, keep all that they have computed
of the open step, and only the hit replicas' part is done again; a replacement starts while they train.  A silent
node is known of when its lease ends, as by the coordinator's default settings.
"""

from __future__ import annotations

from abc import abstractmethod
from math import log2

from unicorn_mgr.coordinator.settings import Settings
from unicorn_mgr.simulator.costs import Costs
from unicorn_mgr.simulator.history import Doing
from unicorn_mgr.simulator.policies.elastic import Replicas, seats_of, whole_size
from unicorn_mgr.simulator.policies.fluid import Job, Life
from unicorn_mgr.simulator.policies.shares import shared_by
from unicorn_mgr.simulator.scenario import Kind, Scenario, Work


class Rule(Replicas):
    """What they have in common."""

    @abstractmethod
    def key(self, work: Work) -> float:
        """In proportion to this it gets slots."""

    def first(self, scenario: Scenario) -> list[int]:
        """By the rule."""
        return self._sizes(scenario, scenario.capacity)

    def _sizes(self, scenario: Scenario, capacity: int) -> list[int]:
        return shared_by([self.key(work) for work in scenario.jobs], scenario.jobs, capacity)

    # -- healing -------------------------------------------------------------------------

    def detection(self, kind: Kind, costs: Costs) -> float:
        """Of an end at once, of a node by its lease, of a standstill with the culprit's name."""
        match kind:
            case Kind.NODE:
                return Settings().lease_seconds
            case Kind.HANG:
                return costs.hang_seconds
            case _:
                return costs.exit_seen_seconds

    def stall(self, life: Life, job: Job, kind: Kind) -> float:  # noqa: ARG002 - the same for all kinds
        """Survivors regroup."""
        return self.rejoin(life, job)

    def rejoin(self, life: Life, job: Job) -> float:
        """Grows with the members."""
        gpus = max(1, whole_size(job) * life.scenario.gpus_per_slot)
        costs = life.costs
        grows = costs.regroup_seconds_per_doubling * log2(gpus) + costs.communicator_seconds_per_thousand * gpus / 1000
        return costs.regroup_seconds + grows

    def mending(self, life: Life, job: Job, replica: int, *, moved: bool) -> float:  # noqa: ARG002 - anywhere
        """A start, and the state from a live replica or from storage."""
        costs = life.costs
        live = job.work.state_bytes / (costs.state_bytes_per_second * life.scenario.gpus_per_slot * job.work.replica)
        state = live if whole_size(job) else life.from_storage(job)
        return costs.process_start_seconds + (costs.cold_start_seconds if moved else 0.0) + state

    def loses(self, life: Life, job: Job, number: int, share: float) -> None:
        """What the hit ones had computed."""
        life.loses_open(job, number, share)

    # -- sharing -------------------------------------------------------------------------

    def found(self, life: Life, job: Job, number: int) -> None:
        """Now that it is known what is left it can be shared."""
        super().found(life, job, number)
        self.offered(life)

    def offered(self, life: Life) -> None:
        """Who has too much gives first; while something is undetected nobody knows what there is to share."""
        if not any(job.doing is Doing.DETECTION for job in life.jobs):
            sizes = self._sizes(life.scenario, life.cluster.up)
            for job, size in zip(life.jobs, sizes, strict=True):
                if size < job.wanted:
                    self._shrinks(life, job, size)
            for job, size in zip(life.jobs, sizes, strict=True):
                while job.wanted < size:
                    job.broken[len(job.seats) // job.work.replica] = life.token()
                    job.seats += [None] * job.work.replica
                    job.wanted += job.work.replica
        super().offered(life)

    def _shrinks(self, life: Life, job: Job, size: int) -> None:
        """Replicas that are broken go first, those that lack most before all; then the last ones."""
        before = whole_size(job)
        lacking = {r: sum(job.seats[s] is None for s in seats_of(job, r)) for r in job.broken}
        replicas = range(job.wanted // job.work.replica)
        order = sorted(replicas, key=lambda r: (r in job.broken, lacking.get(r, 0), r))
        kept = sorted(order[: size // job.work.replica])
        life.keeps(job, [seat for replica in kept for seat in seats_of(job, replica)])
        job.broken = {new: job.broken[old] for new, old in enumerate(kept) if old in job.broken}
        job.wanted = size
        if job.doing is Doing.TRAINING and whole_size(job) < before:
            self.regroups(life, job)
        else:
            life.tells(job)


class Equal(Rule):
    """Everybody has as many slots."""

    name = "equal"

    def key(self, work: Work) -> float:  # noqa: ARG002 - whoever it is
        """All alike."""
        return 1.0


class ByWeight(Rule):
    """Twice the weight, twice the slots."""

    name = "weight"

    def key(self, work: Work) -> float:
        """Its weight."""
        return work.weight


class BySize(Rule):
    """Twice the state, twice the slots."""

    name = "size"

    def key(self, work: Work) -> float:
        """Bytes of its model and optimizer."""
        return work.state_bytes
