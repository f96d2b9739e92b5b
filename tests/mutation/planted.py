"""Bugs that somebody who changes this code might make, each against a rule of the healing protocol.

All of them are found by core tests, by a story, or by the swarm: `python -m mutation --planted`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """A text of a core that is replaced by another."""

    name: str
    path: str
    """Below the package."""
    before: str
    after: str


PLANTED = (
    Planted(
        "micro-batches that survivors hold are computed again, and count twice",
        "transition/deal.py",
        "missing = [n for n in range(micro_batches) if n not in claimed]",
        "missing = list(range(micro_batches))",
    ),
    Planted(
        "two members that hold the same micro-batch both keep it",
        "transition/deal.py",
        "held[m] = ()",
        "held[m] = holdings[m].held",
    ),
    Planted(
        "as many buckets as are reduced are taken for the first ones",
        "transition/deal.py",
        "next((m for m in ahead if b < len(holdings[m].reduced) and holdings[m].reduced[b]), None)",
        "next((m for m in ahead if b < sum(holdings[m].reduced)), None)",
    ),
    Planted(
        "a late member takes the state of whoever comes first, be it as late",
        "transition/deal.py",
        "routes[m] = LateState(ahead[donors % len(ahead)])",
        "routes[m] = LateState(members[0])",
    ),
    Planted(
        "what was published for an older epoch counts in a newer one",
        "coordinator/rendezvous.py",
        "note.epoch != meeting.epoch",
        "False",
    ),
    Planted(
        "an epoch is granted under the number of the one before",
        "coordinator/rules/epochs.py",
        "Epoch(c.state.term, job.epoch.number + 1)",
        "Epoch(c.state.term, job.epoch.number)",
    ),
    Planted(
        "a job begins elsewhere before agents that are cut off have stopped its workers",
        "coordinator/rules/epochs.py",
        "c.now >= _fenced_at(c.settings, c.state.nodes[worker.node])",
        "True",
    ),
    Planted(
        "an agent that is cut off does not stop its workers",
        "agent/core.py",
        "return since + fence * FREEZE_SHARE",
        "return None",
    ),
    Planted(
        "an agent does not tell again that a worker has resumed",
        "agent/core.py",
        "worker.truth = replace(worker.truth, resumed=said)",
        "pass",
    ),
    Planted(
        "a newcomer trains on a slot that another process still has",
        "coordinator/rules/epochs.py",
        "return whole(job, [w for w in ready if not holders(c.state, w)])",
        "return whole(job, ready)",
    ),
    Planted(
        "a coordinator that has slept takes all others for silent",
        "coordinator/liveness.py",
        "self.beats = {name: at + seconds for name, at in self.beats.items()}",
        "pass",
    ),
    Planted(
        "a coordinator that hears nobody judges all of them",
        "coordinator/rules/nodes.py",
        "if many and len(together) > c.settings.breaker_share * len(counted):",
        "if False:",
    ),
    Planted(
        "a worker that has gone on between two readings is taken for hung",
        "coordinator/rules/stalls.py",
        "moved = {s.worker for s in second if before.get(s.worker) != s.counter}",
        "moved = set()",
    ),
    Planted(
        "a micro-batch that kills is dealt for ever",
        "coordinator/rules/endings.py",
        "if len(set(workers)) < limit or (step, number) in job.poison:",
        "if True:",
    ),
    Planted(
        "two deaths at once make two epochs",
        "coordinator/rules/epochs.py",
        "if lost and c.now < min(w.gone_at for w in lost) + c.settings.death_batch_seconds:",
        "if False:",
    ),
    Planted(
        "a failed connection waits for no cause",
        "coordinator/rules/epochs.py",
        "job.symptom_at is not None and c.now >= job.symptom_at + c.settings.settle_seconds",
        "job.symptom_at is not None",
    ),
    Planted(
        "newcomers are admitted after the last step",
        "coordinator/rules/epochs.py",
        "if job.loop_ended_step is not None or job.phase is JobPhase.ENDING or job.suspension is not None:",
        "if job.suspension is not None:",
    ),
    Planted(
        "an answer to an older question is a plan",
        "coordinator/fence.py",
        "return number == state.planning.number and not state.planning.answered",
        "return True",
    ),
    Planted(
        "processes are started though all actions are paused",
        "coordinator/rules/allocation.py",
        "if c.state.paused or not wants_slots(job) or job.suspension is not None",
        "if not wants_slots(job) or job.suspension is not None",
    ),
    Planted(
        "a lost node that an operator drains is taken for one in reach",
        "coordinator/record.py",
        "node.draining = True\n            if node.phase not in (NodePhase.SILENT, NodePhase.LOST):",
        "node.draining = True\n            if node.phase is not NodePhase.SILENT:",
    ),
    Planted(
        "a job that has lost slots before it began begins with too few",
        "coordinator/rules/epochs.py",
        "if not ready or len(job.seats) + len(job.barred) < job.spec.size_min:",
        "if not ready:",
    ),
)
