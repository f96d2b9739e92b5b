"""Complete the step: who holds what, and who does what is missing.

Theory of operation
-------------------
When the membership of a job changes, every member publishes its `Holdings`: the
last step it has applied, the micro-batches whose gradients lie in its local
buffers, and one bit per bucket that it has seen reduced.  `deal` turns the
holdings of all members into one `Deal`.  It is a pure function of its arguments,
so every member computes the same deal by itself and nobody has to vote.

The rules it follows, each with the interleaving that breaks the naive version:

* Ownership comes from holdings, never from membership.  A survivor that had begun
  the next step with the old assignment would otherwise redo or skip micro-batches.
* Holdings say *which* buckets are reduced, not *how many*: survivors of a broken
  ring see them complete out of order.
* A bucket that any member holds reduced is final and is sent by the first such
  member.  Only the others are reduced again.
* Holdings of one step must be disjoint.  A sum can't be un-added, so the later of
  two members that claim the same micro-batch gives up all it holds of that step.
* A member that is one step late is served from the reduction buffers that ahead
  members have kept.  If one of them is gone, it takes the whole state instead, as
  a joiner does: without this fallback it could wait for ever.
* The whole state comes from one member, and not in stripes from several.  One sends as fast as the taker can
  receive, and several takers are spread over several members.  And replicas that silently differ are found by
  comparing them, while what is put together of two would be a third state that fits none.

`tests/protocol/step_model.py` runs this very function through every interleaving
of faults and joins for small worlds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace

from unicorn_mgr.model import INITIAL, NO_STATE, Holdings, Mark


@dataclass(frozen=True, slots=True)
class LateBuckets:
    """A member one step late finishes that step from buckets others have kept."""

    sources: tuple[str | None, ...]
    """Per bucket: the member that sends it; None where the late member has it itself."""


@dataclass(frozen=True, slots=True)
class LateState:
    """A member takes the whole state after the last applied step from another."""

    source: str


@dataclass(frozen=True, slots=True)
class Deal:
    """What all members do to complete the open step."""

    step: int
    """The step that is open for everybody once late members have caught up."""
    late: Mapping[str, LateBuckets | LateState] = field(default_factory=dict)
    reduced: tuple[str | None, ...] = ()
    """Per bucket of `step`: the first member that holds it reduced, None if nobody does."""
    todo: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Per member: the missing micro-batches of `step` it computes, in order."""
    voided: tuple[str, ...] = ()
    """Members whose holdings of `step` clash with an earlier member's and are given up."""
    restored: Mark | None = None
    """Nobody has any state: the snapshot that all members begin with which are not late, if there is one."""
    from_storage: bool = False
    """What is stored is newer: the one member that is not late begins with that, and with the snapshot if it can't."""


def deal(
    members: Sequence[str],
    holdings: Mapping[str, Holdings],
    micro_batches: int,
    buckets: int,
) -> Deal:
    """Derive the one deal that all `members` follow.

    `members` is the ordered membership of the epoch; `holdings` has one entry for each.
    `micro_batches` and `buckets` are those of the open step (none after the last one).

    If nobody has any state, the newest committed snapshot that a member can read, or have brought
    from another node, becomes the job's state, or what is stored if that is newer, or the first
    member's initial one.  The open step is the one after that state, which nobody can know yet.
    """
    top = max(holdings[m].applied for m in members)
    if top == NO_STATE:
        return _begin_again(members, holdings, _deal_out(members, {}, range(micro_batches)), buckets)

    ahead = [m for m in members if holdings[m].applied == top]
    held, voided = _disjoint(ahead, holdings)
    reduced = tuple(
        next((m for m in ahead if b < len(holdings[m].reduced) and holdings[m].reduced[b]), None)
        for b in range(buckets)
    )
    missing: list[int] = []
    if None in reduced:
        claimed = {n for numbers in held.values() for n in numbers}
        missing = [n for n in range(micro_batches) if n not in claimed]
    return Deal(top + 1, _routes(members, holdings, ahead), reduced, _deal_out(members, held, missing), voided)


def merged(holdings: Sequence[Holdings]) -> Holdings:
    """What a replica holds of which each worker holds a part: only what all of them do.

    Its workers are always in the same step with the same micro-batches; if they are not, a state has reached
    some of them and not the others, and none of it is of use.
    """
    first = holdings[0]
    if len(holdings) == 1:
        return first
    for other in holdings[1:]:
        alike = other.applied == first.applied and other.held == first.held
        if not alike or len(other.reduced) != len(first.reduced) or len(other.kept) != len(first.kept):
            return Holdings(NO_STATE)
    return replace(
        first,
        reduced=tuple(all(of) for of in zip(*(h.reduced for h in holdings), strict=True)),
        kept=tuple(all(of) for of in zip(*(h.kept for h in holdings), strict=True)),
    )


def column(seats: Mapping[int, Holdings], position: int, size: int) -> dict[int, Holdings]:
    """What each replica of `size` seats holds, as its worker at this position sees it, by that worker's seat.

    Everything but snapshots it holds as a whole.  Snapshots are parts: one is of use wherever it lies if
    every position has its part of it on some replica.  That is the same at every position, so all columns
    choose the same step.  One worker may have seen it committed and another not, which died before: what one
    knows counts.
    """
    mine = [seat for seat in sorted(seats) if seat % size == position]
    held = {seat: merged([seats[seat - position + other] for other in range(size)]) for seat in mine}
    if any(h.applied > NO_STATE for h in held.values()):
        return held  # nobody will ask for snapshots
    parts: list[dict[Mark, None]] = [{} for _ in range(size)]
    for seat, h in sorted(seats.items()):
        parts[seat % size] |= dict.fromkeys((*h.snapshots, *h.elsewhere))
    whole = [mark for mark in parts[0] if all(mark in part for part in parts)]
    committed = tuple(dict.fromkeys(mark for _, h in sorted(seats.items()) for mark in h.committed))
    stored = max((h.stored for h in seats.values() if h.stored is not None), key=lambda m: m.order, default=None)
    for seat in mine:
        snapshots = tuple(mark for mark in seats[seat].snapshots if mark in whole)
        elsewhere = tuple(mark for mark in seats[seat].elsewhere if mark in whole)
        of_all = replace(held[seat], committed=committed, stored=stored)
        held[seat] = replace(of_all, snapshots=snapshots, elsewhere=elsewhere)
    return held


def standstill(holdings: Iterable[Holdings]) -> int | None:
    """The step after which all members stand still that are told to: the open one, if anybody has opened it.

    None if nobody has any state.
    """
    found = list(holdings)
    top = max(h.applied for h in found)
    if top == NO_STATE:
        return None
    return top + any(h.applied == top and bool(h.reduced) for h in found)


def _begin_again(
    members: Sequence[str], holdings: Mapping[str, Holdings], todo: Mapping[str, tuple[int, ...]], buckets: int
) -> Deal:
    """Whoever can read the newest committed snapshot does; all others take its state from the first of these.

    If nobody can, one has it brought from another node.
    """
    committed = dict.fromkeys(mark for m in members for mark in holdings[m].committed)
    found = [mark for m in members for mark in (*holdings[m].snapshots, *holdings[m].elsewhere) if mark in committed]
    newest = max(found, key=lambda mark: mark.order, default=None)
    stored = [h.stored for h in (holdings[m] for m in members) if h.stored is not None]
    from_storage = newest is not None and any(mark.order > newest.order for mark in stored)
    origins = [m for m in members if newest in holdings[m].snapshots]
    origins = origins or [m for m in members if newest in holdings[m].elsewhere][:1]
    if newest is None or from_storage:
        origins = [members[0]]
    late = {m: LateState(origins[0]) for m in members if m not in origins}
    return Deal(INITIAL + 1, late, (None,) * buckets, todo, restored=newest, from_storage=from_storage)


def _disjoint(
    ahead: Sequence[str], holdings: Mapping[str, Holdings]
) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    held: dict[str, tuple[int, ...]] = {}
    voided: list[str] = []
    claimed: set[int] = set()
    for m in ahead:
        if claimed.isdisjoint(holdings[m].held):
            held[m] = holdings[m].held
            claimed.update(holdings[m].held)
        else:
            held[m] = ()
            voided.append(m)
    return held, tuple(voided)


def _routes(
    members: Sequence[str], holdings: Mapping[str, Holdings], ahead: Sequence[str]
) -> dict[str, LateBuckets | LateState]:
    top = holdings[ahead[0]].applied
    routes: dict[str, LateBuckets | LateState] = {}
    donors = 0
    for m in members:
        mine = holdings[m]
        if mine.applied == top:
            continue
        sources = _bucket_sources(mine, holdings, ahead) if mine.applied == top - 1 and top > INITIAL else None
        if sources is not None:
            routes[m] = LateBuckets(sources)
        else:
            routes[m] = LateState(ahead[donors % len(ahead)])
            donors += 1
    return routes


def _bucket_sources(
    mine: Holdings, holdings: Mapping[str, Holdings], ahead: Sequence[str]
) -> tuple[str | None, ...] | None:
    """Per bucket of the late member's open step who sends it, or None if one is gone."""
    buckets = max(len(mine.reduced), max(len(holdings[a].kept) for a in ahead))
    if buckets == 0:
        return None
    sources: list[str | None] = []
    for b in range(buckets):
        if b < len(mine.reduced) and mine.reduced[b]:
            sources.append(None)
            continue
        keeper = next((a for a in ahead if b < len(holdings[a].kept) and holdings[a].kept[b]), None)
        if keeper is None:
            return None
        sources.append(keeper)
    return tuple(sources)


def _deal_out(
    members: Sequence[str], held: Mapping[str, tuple[int, ...]], missing: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Deal the missing micro-batches, each to the least loaded member so far (first wins ties)."""
    loads = [(len(held.get(m, ())), position) for position, m in enumerate(members)]
    heapify(loads)
    todo: dict[str, list[int]] = {m: [] for m in members}
    for number in missing:
        load, position = loads[0]
        todo[members[position]].append(number)
        heapreplace(loads, (load + 1, position))
    return {m: tuple(numbers) for m, numbers in todo.items()}
