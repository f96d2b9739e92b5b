"""Which workers' snapshots are copied to which nodes.

One replica's are: its parts are all of the state.  A part that workers on two nodes have which fail apart has its
second copy already.  They are placed when the job has settled in a membership, and anew when that changes, when a
node that keeps copies goes, or when there are more nodes to choose from for a job that is not as safe as it could be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from unicorn_mgr.coordinator.rules import Context
from unicorn_mgr.coordinator.rules.peers import Layout, Part, harmed, place
from unicorn_mgr.coordinator.rules.replicas import replica_size, whole
from unicorn_mgr.coordinator.state import ClusterState, Job, Node, Worker
from unicorn_mgr.effects.coordinator import BackupsPlaced, CopiesReleased, Decision


def placed(c: Context, job: Job) -> Iterator[Decision]:
    """Where the snapshots of the present members go."""
    if job.spec.snapshot_budget <= 0 or job.over or job.transition is not None or not job.running:
        return
    if job.backups.epoch == job.epoch and _stand(c.state, job):
        return
    members = whole(job, job.living_members())
    needy = _needy(c.state, job, members)
    if needy or job.backups.sources:
        yield _placed(c.state, job, members, needy)


def released(c: Context, job: Job) -> Iterator[Decision]:
    """Copies that are left from an earlier placement are obsolete once all parts have newer ones, or need none."""
    del c
    newer = job.backups.step > job.backups.older_until or not job.backups.sources
    settled = job.running and job.transition is None
    if job.backups.older and newer and settled and not job.over:
        yield CopiesReleased(job.name, tuple(job.backups.older))


def _needy(state: ClusterState, job: Job, members: Sequence[Worker]) -> set[int]:
    """Positions whose part would be gone with one node, or with one failure domain."""
    size = replica_size(job)
    first: dict[int, tuple[str, str]] = {}
    doubled: set[int] = set()
    for worker in members:
        position, domain = worker.seat % size, state.nodes[worker.node].domain
        node, beside = first.setdefault(position, (worker.node, domain))
        if node != worker.node and not (domain and domain == beside):
            doubled.add(position)
    return set(first) - doubled


def _stand(state: ClusterState, job: Job) -> bool:
    """All is as it was when they were placed."""
    for node, port in job.backups.peers.values():
        if not _keeps(state.nodes[node]) or state.nodes[node].copies_port != port:
            return False
    return not job.backups.reason or job.backups.keepers == sum(map(_may_keep, state.nodes.values()))


def _keeps(node: Node) -> bool:
    """It has not been given up, though it may be silent."""
    return node.counts and node.copies_port > 0


def _may_keep(node: Node) -> bool:
    return node.usable and node.copies_port > 0


def _placed(state: ClusterState, job: Job, members: Sequence[Worker], needy: Set[int]) -> BackupsPlaced:
    size = replica_size(job)
    first = members[0].seat // size if members else 0
    sources = {w.seat % size: w.name for w in members if needy and w.seat // size == first}
    before = {Part(first, p): node for p, (node, _) in job.backups.peers.items() if _keeps(state.nodes[node])}
    keepers = [node.name for node in state.nodes.values() if _may_keep(node)]
    nodes = {Part(w.seat // size, w.seat % size): w.node for w in job.living_members()}
    known = sorted({*keepers, *before.values()})
    domains = {name: state.nodes[name].domain for name in (*known, *nodes.values())}
    layout = Layout(nodes, domains, known)
    parts = [Part(first, position) for position in sources if position in needy]
    found = place(layout, parts, before)
    return BackupsPlaced(
        job.name,
        job.epoch,
        sources,
        {part.position: (node, state.nodes[node].copies_port) for part, node in found.items()},
        tuple(sorted(set(job.backups.sources.values()) - set(sources.values()))),
        len(keepers),
        _reason({part: why for part in parts if (why := harmed(layout, found, part))}, len(parts)),
    )


def _reason(harms: dict[Part, str], parts: int) -> str:
    """The first of the reasons, and of how many parts it is said."""
    if not harms:
        return ""
    why = next(iter(harms.values()))
    alike = sorted(part.position for part, other in harms.items() if other == why)
    if len(alike) == parts:
        return why if parts == 1 else f"all parts: {why}"
    return f"part{'s' * (len(alike) > 1)} {', '.join(map(str, alike))}: {why}"
