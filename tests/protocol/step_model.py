"""Exhaustive model of "complete the step": every interleaving of a small world.

`workers` workers train `steps` steps of `micro_batches` micro-batches and `buckets`
buckets, and up to `faults` of them die, each at any moment.  With `join` the last
worker is no member at first and is admitted at any moment.  If all state is lost, the
first member begins anew.  The moves are: compute a
micro-batch, launch a bucket, see a bucket complete (in any order, at some members
only), apply the step, die, be detected (several deaths as one epoch or as two), hear
of an epoch (late, or never when a newer one overtakes it), publish holdings, take the
deal, receive each thing that the deal promises (a bucket, a state; torn when overtaken).
The deal is the product's own `unicorn_mgr.transition.deal.deal`.

Checked in every state: an applied bucket holds every micro-batch exactly once; from
every state the end can be reached without a further death (nobody is stuck).

`Variant` plants one wrong reading of the rules each; `explore` must find it.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from unicorn_mgr.model import INITIAL, NO_STATE, Holdings
from unicorn_mgr.transition.deal import Deal, LateBuckets, LateState, deal


class Variant(enum.Enum):
    """A wrong reading of the rules, and what it breaks."""

    AS_RULED = "as ruled"
    PREFIX = "holdings say how many buckets are reduced, not which"
    MEMBERSHIP = "micro-batches are owned by position in the membership"
    UNFROZEN = "a member goes on computing after it has published"
    OLD_HOLDINGS = "a late member's holdings of the finished step count for the open one"
    NO_FALLBACK = "a late member waits for a bucket that nobody has kept"
    LEAVE = "a worker leaves after its last step without a closing collective"


@dataclass(frozen=True, slots=True)
class Scope:
    """The size of the world that is explored."""

    workers: int = 3
    micro_batches: int = 3
    buckets: int = 2
    steps: int = 2
    faults: int = 2
    join: bool = False
    states_max: int = 6_000_000


# A sum of gradients is the sorted tuple of the micro-batches in it; None is "not here".
Sum = tuple[object, ...] | None


class Item(NamedTuple):
    """Something one member sends another in an epoch."""

    kind: str  # "late": a bucket of the step it lags behind; "bucket": of the open step; "state"
    bucket: int
    source: int


class Sent(NamedTuple):
    epoch: int
    to: int
    item: Item
    content: object  # the sum in the bucket; the last applied step of the state


class Worker(NamedTuple):
    applied: int
    held: tuple[int, ...]
    todo: tuple[int, ...]
    reduced: tuple[Sum, ...]
    launched: tuple[bool, ...]
    kept: tuple[Sum, ...]
    epoch: int  # the epoch it acts in; -1: none yet
    heard: int  # the newest epoch it knows
    gathering: bool  # has published for `epoch` and not yet taken the deal
    awaits: tuple[Item, ...]  # what the deal promised it and has not come yet


class Published(NamedTuple):
    epoch: int
    worker: int
    applied: int
    held: tuple[int, ...]
    reduced: tuple[Sum, ...]
    kept: tuple[Sum, ...]


class Launched(NamedTuple):
    epoch: int
    step: int
    bucket: int
    worker: int
    share: tuple[int, ...]


class State(NamedTuple):
    workers: tuple[Worker | None, ...]  # None: dead
    epochs: tuple[tuple[int, ...], ...]
    published: frozenset[Published]
    launched: frozenset[Launched]
    sent: frozenset[Sent]
    faults: int
    joined: bool


class Violation(Exception):
    """A bucket was applied that does not hold every micro-batch once."""


class Stuck(Exception):
    """A state was reached from which the end can't be reached."""


def _put(row: tuple[Any, ...], index: int, value: object) -> tuple[Any, ...]:
    return (*row[:index], value, *row[index + 1 :])


class Model:
    def __init__(self, scope: Scope, variant: Variant = Variant.AS_RULED) -> None:
        self.scope = scope
        self.variant = variant
        self.full = tuple(range(scope.micro_batches))
        self.nothing: tuple[Sum, ...] = (None,) * scope.buckets
        self.idle = (False,) * scope.buckets
        self._deal = functools.cache(self._deal_of)

    # -- the world at the start ----------------------------------------------------------

    def start(self) -> State:
        n = self.scope.workers
        first = tuple(range(n - 1 if self.scope.join else n))
        workers = tuple(self._fresh(i, first) for i in range(n))
        return State(workers, (first,), frozenset(), frozenset(), frozenset(), 0, not self.scope.join)

    def _fresh(self, i: int, first: tuple[int, ...]) -> Worker:
        if i in first:
            applied, todo, epoch = INITIAL, self._by_membership(first, i), 0
        else:
            applied, todo, epoch = NO_STATE, (), -1
        return Worker(applied, (), todo, self.nothing, self.idle, self.nothing, epoch, epoch, False, ())

    def _by_membership(self, members: tuple[int, ...], i: int) -> tuple[int, ...]:
        return tuple(m for m in self.full if members[m % len(members)] == i)

    # -- moves ---------------------------------------------------------------------------

    def moves(self, g: State) -> Iterator[tuple[str, State]]:
        alive = [i for i, w in enumerate(g.workers) if w is not None]
        newest = len(g.epochs) - 1
        for i in alive:
            w = g.workers[i]
            assert w is not None
            if g.faults < self.scope.faults and len(alive) > 1:
                yield f"{i} dies", g._replace(workers=_put(g.workers, i, None), faults=g.faults + 1)
            if w.heard < newest and i in g.epochs[newest]:
                yield f"{i} hears of epoch {newest}", self._with(g, i, w._replace(heard=newest))
            if self.variant is Variant.LEAVE and w.applied == self.scope.steps - 1:
                continue
            if w.epoch < 0 or w.gathering or w.heard > w.epoch:
                yield from self._between_epochs(g, i, w)
            if w.epoch >= 0 and not w.gathering:
                yield from self._train(g, i, w)
        yield from self._coordinator(g, alive)

    def _with(self, g: State, i: int, w: Worker) -> State:
        return g._replace(workers=_put(g.workers, i, w))

    def _between_epochs(self, g: State, i: int, w: Worker) -> Iterator[tuple[str, State]]:
        if w.heard > w.epoch:
            note = Published(w.heard, i, w.applied, w.held, self._told(w.reduced), w.kept)
            moved = w._replace(epoch=w.heard, gathering=True, launched=self.idle, awaits=())
            yield (
                f"{i} publishes for epoch {w.heard}",
                self._with(g, i, moved)._replace(published=g.published | {note}),
            )
        if not w.gathering:
            return
        if self.variant is Variant.UNFROZEN and w.todo and w.applied < self.scope.steps - 1:
            yield f"{i} computes {w.todo[0]} while gathering", self._with(g, i, self._computed(w))
        members = g.epochs[w.epoch]
        notes = {p.worker: p for p in g.published if p.epoch == w.epoch}
        if len(notes) == len(members) and all(g.workers[m] is not None for m in members):
            told = tuple(notes[m] for m in members)
            if i == members[0] and all(p.applied == NO_STATE for p in told):
                # From storage, or from the start: which of them, this model does not tell apart.
                w = w._replace(applied=INITIAL)
            taken = self._take_deal(i, w, members, told)
            if taken is not None:
                sent = g.sent | self._sends(i, w, members, told)
                yield (
                    f"{i} takes the deal {taken.todo} in epoch {w.epoch}",
                    self._with(g, i, taken)._replace(sent=sent),
                )

    def _receive(self, g: State, i: int, w: Worker) -> Iterator[tuple[str, State]]:
        for x in g.sent:
            if x.epoch == w.epoch and x.to == i and x.item in w.awaits:
                yield f"{i} receives {x.item.kind} {x.item.bucket}", self._with(g, i, self._received(i, w, x))

    def _received(self, i: int, w: Worker, x: Sent) -> Worker:
        left = tuple(item for item in w.awaits if item != x.item)
        if x.item.kind == "state":
            assert isinstance(x.content, int)
            return w._replace(applied=x.content, awaits=left)
        if not isinstance(x.content, tuple):
            raise Violation(f"worker {i} is promised bucket {x.item.bucket} by {x.item.source}, which has not got it")
        w = w._replace(reduced=_put(w.reduced, x.item.bucket, x.content), awaits=left)
        if x.item.kind == "late" and not any(item.kind == "late" for item in left):
            if any(total != self.full for total in w.reduced):
                raise Violation(f"late worker {i} finishes step {w.applied + 1} with {w.reduced}")
            w = w._replace(applied=w.applied + 1, held=(), kept=w.reduced, reduced=self.nothing)
        return w

    def _train(self, g: State, i: int, w: Worker) -> Iterator[tuple[str, State]]:
        if w.awaits:
            yield from self._receive(g, i, w)
            return
        step, current = w.applied + 1, w.heard == w.epoch
        if step < self.scope.steps:
            if w.todo and current:
                yield f"{i} computes {w.todo[0]}", self._with(g, i, self._computed(w))
            for b in range(self.scope.buckets):
                before = all(w.reduced[x] is not None or w.launched[x] for x in range(b))
                if current and not w.todo and w.reduced[b] is None and not w.launched[b] and before:
                    yield f"{i} launches bucket {b} of step {step}", self._launch(g, i, w, b)
            if None not in w.reduced:
                yield f"{i} applies step {step}", self._with(g, i, self._applied(g, i, w))
        for b in range(self.scope.buckets):
            if w.launched[b] and w.reduced[b] is None:
                shares = [x for x in g.launched if (x.epoch, x.step, x.bucket) == (w.epoch, step, b)]
                if len(shares) == len(g.epochs[w.epoch]):
                    total = tuple(sorted(n for x in shares for n in x.share))
                    yield (
                        f"{i} sees bucket {b}",
                        self._with(g, i, w._replace(reduced=_put(w.reduced, b, total))),
                    )

    def _computed(self, w: Worker) -> Worker:
        return w._replace(held=tuple(sorted((*w.held, w.todo[0]))), todo=w.todo[1:])

    def _launch(self, g: State, i: int, w: Worker, b: int) -> State:
        moved = w._replace(launched=_put(w.launched, b, True), kept=_put(w.kept, b, None))
        share = Launched(w.epoch, w.applied + 1, b, i, w.held)
        return self._with(g, i, moved)._replace(launched=g.launched | {share})

    def _applied(self, g: State, i: int, w: Worker) -> Worker:
        for b, total in enumerate(w.reduced):
            if total != self.full:
                raise Violation(f"worker {i} applies step {w.applied + 1} with bucket {b} = {total}")
        done = w.applied + 1
        todo = self._by_membership(g.epochs[w.epoch], i) if done < self.scope.steps - 1 else ()
        return w._replace(applied=done, held=(), todo=todo, reduced=self.nothing, launched=self.idle, kept=w.reduced)

    # -- the deal ------------------------------------------------------------------------

    def _told(self, reduced: tuple[Sum, ...]) -> tuple[Sum, ...]:
        if self.variant is not Variant.PREFIX:
            return reduced
        there = [r for r in reduced if r is not None]
        return tuple(there[b] if b < len(there) else None for b in range(len(reduced)))

    def _deal_of(self, members: tuple[int, ...], notes: tuple[Published, ...]) -> Deal:
        top = max(p.applied for p in notes)
        holdings = {
            str(p.worker): Holdings(
                p.applied,
                p.held,
                tuple(r is not None for r in p.reduced),
                tuple(r is not None for r in p.kept),
            )
            for p in notes
        }
        open_batches = self.scope.micro_batches if top + 1 < self.scope.steps else 0
        return deal([str(m) for m in members], holdings, open_batches, self.scope.buckets)

    def _take_deal(self, i: int, w: Worker, members: tuple[int, ...], notes: tuple[Published, ...]) -> Worker | None:
        agreed = self._deal(members, notes)
        over = agreed.step > self.scope.steps - 1
        awaits: list[Item] = []
        route = agreed.late.get(str(i))
        if isinstance(route, LateState):
            if self.variant is Variant.NO_FALLBACK and w.applied != NO_STATE:
                return None
            awaits.append(Item("state", 0, int(route.source)))
            w = w._replace(applied=NO_STATE, reduced=self.nothing, kept=self.nothing)
        if isinstance(route, LateBuckets):
            awaits += [Item("late", b, int(s)) for b, s in enumerate(route.sources) if s is not None]
        mine = self.nothing if route is not None or over else w.reduced
        if not over:
            awaits += [
                Item("bucket", b, int(s)) for b, s in enumerate(agreed.reduced) if s is not None and mine[b] is None
            ]
        held = w.held
        if (route is not None and self.variant is not Variant.OLD_HOLDINGS) or str(i) in agreed.voided:
            held = ()
        todo = agreed.todo[str(i)]
        if self.variant is Variant.MEMBERSHIP:
            todo = tuple(n for n in self._by_membership(members, i) if n not in held)
        moved = w._replace(
            held=held,
            todo=() if over else todo,
            launched=self.idle,
            gathering=False,
            awaits=tuple(sorted(awaits)),
        )
        if isinstance(route, LateBuckets) and not any(item.kind == "late" for item in awaits):
            moved = moved._replace(applied=w.applied + 1, kept=w.reduced, reduced=self.nothing)
        return moved

    def _sends(self, i: int, w: Worker, members: tuple[int, ...], notes: tuple[Published, ...]) -> frozenset[Sent]:
        """What member `i` sends the others when it takes the deal."""
        agreed = self._deal(members, notes)
        over = agreed.step > self.scope.steps - 1
        reduced = {p.worker: p.reduced for p in notes}
        sent: set[Sent] = set()
        for m in members:
            route = agreed.late.get(str(m))
            if isinstance(route, LateState) and route.source == str(i):
                sent.add(Sent(w.epoch, m, Item("state", 0, i), w.applied))
            if isinstance(route, LateBuckets):
                sent |= {
                    Sent(w.epoch, m, Item("late", b, i), w.kept[b]) for b, s in enumerate(route.sources) if s == str(i)
                }
            lacks = self.nothing if route is not None else reduced[m]
            sent |= {
                Sent(w.epoch, m, Item("bucket", b, i), w.reduced[b])
                for b, s in enumerate(agreed.reduced)
                if s == str(i) and lacks[b] is None and m != i and not over
            }
        return frozenset(sent)

    # -- the coordinator -----------------------------------------------------------------

    def _coordinator(self, g: State, alive: list[int]) -> Iterator[tuple[str, State]]:
        newest = g.epochs[-1]
        last = self.scope.workers - 1
        training = [w for w in g.workers[:-1] if w is not None]
        if not g.joined and last in alive:
            if any(w.applied < self.scope.steps - 1 for w in training):
                admitted = g._replace(epochs=(*g.epochs, (*newest, last)), joined=True)
                yield f"epoch {len(g.epochs)} admits {last}", admitted
            if not training:
                begun = g._replace(epochs=(*g.epochs, (last,)), joined=True)
                yield f"epoch {len(g.epochs)} begins a new life with {last}", begun
        dead = [m for m in newest if g.workers[m] is None]
        for k in range(1, len(dead) + 1):
            members = tuple(m for m in newest if m not in dead[:k])
            if members:
                yield f"epoch {len(g.epochs)} is {members}", g._replace(epochs=(*g.epochs, members))

    # -- reading a state -----------------------------------------------------------------

    def ended(self, g: State) -> bool:
        members = set(g.epochs[-1])
        last = self.scope.steps - 1
        waiting = [w for i, w in enumerate(g.workers) if w is not None and i in members]
        return bool(waiting) and all(w.applied == last for w in waiting)

    def forget(self, g: State) -> State:
        """Drop history that no move can read any more, so that equal futures are one state."""
        live = [w for w in g.workers if w is not None]
        newest = len(g.epochs) - 1
        gathers = {w.epoch for w in live if w.gathering} | {w.heard for w in live if w.heard > w.epoch} | {newest}
        whole = {k for k in gathers if all(g.workers[m] is not None for m in g.epochs[k])}
        published = frozenset(p for p in g.published if p.epoch in whole)
        launched = frozenset(
            x for x in g.launched if any(self._may_read(w, x) for w in live) and self._may_complete(g, x)
        )
        sent = frozenset(
            x
            for x in g.sent
            if (to := g.workers[x.to]) is not None and x.epoch == to.epoch and (to.gathering or x.item in to.awaits)
        )
        used = sorted(gathers | {w.epoch for w in live if w.epoch >= 0} | {w.heard for w in live if w.heard >= 0})
        return self._renumbered(g._replace(published=published, launched=launched, sent=sent), used)

    def _renumbered(self, g: State, used: list[int]) -> State:
        """Only the order of epochs matters, so those that nobody is in any more leave no gap."""
        if len(used) == len(g.epochs):
            return g
        new = {old: k for k, old in enumerate(used)} | {-1: -1}
        return g._replace(
            workers=tuple(w and w._replace(epoch=new[w.epoch], heard=new[w.heard]) for w in g.workers),
            epochs=tuple(g.epochs[k] for k in used),
            published=frozenset(p._replace(epoch=new[p.epoch]) for p in g.published),
            launched=frozenset(x._replace(epoch=new[x.epoch]) for x in g.launched),
            sent=frozenset(x._replace(epoch=new[x.epoch]) for x in g.sent),
        )

    def _may_complete(self, g: State, x: Launched) -> bool:
        """A bucket that a dead member has not launched stays incomplete for ever."""
        if not g.faults:
            return True
        dead = [m for m in g.epochs[x.epoch] if g.workers[m] is None]
        return all(any((y[:3], y.worker) == (x[:3], m) for y in g.launched) for m in dead)

    def _may_read(self, w: Worker, x: Launched) -> bool:
        if w.epoch != x.epoch or w.applied + 1 > x.step:
            return False
        return w.applied + 1 < x.step or w.gathering or w.reduced[x.bucket] is None


def explore(scope: Scope, variant: Variant = Variant.AS_RULED) -> int:
    """Visit every state; return how many there are.  Raises `Violation` or `Stuck` with the shortest story."""
    model = Model(scope, variant)
    first = model.forget(model.start())
    came: dict[State, tuple[State, str] | None] = {first: None}
    before: dict[State, list[State]] = {}
    ends: list[State] = []
    frontier = [first]
    while frontier:
        found: list[State] = []
        for g in frontier:
            if model.ended(g):
                ends.append(g)
            try:
                moves = list(model.moves(g))
            except Violation as wrong:
                raise Violation(f"{wrong}; story: {_story(came, g)}") from None
            for name, raw in moves:
                after = model.forget(raw)
                if not name.endswith("dies"):
                    before.setdefault(after, []).append(g)
                if after not in came:
                    came[after] = (g, name)
                    found.append(after)
        frontier = found
        if len(came) > scope.states_max:
            raise OverflowError(f"more than {scope.states_max} states: choose a smaller scope")
    _check_ends_reachable(came, before, ends)
    return len(came)


def _check_ends_reachable(
    came: dict[State, tuple[State, str] | None], before: dict[State, list[State]], ends: list[State]
) -> None:
    fine, stack = set(ends), list(ends)
    while stack:
        for g in before.get(stack.pop(), ()):
            if g not in fine:
                fine.add(g)
                stack.append(g)
    stuck = [g for g in came if g not in fine]
    if stuck:
        shortest = min((_story(came, g) for g in stuck), key=len)
        raise Stuck(f"{len(stuck)} states can't reach the end; story: {shortest}")


def _story(came: dict[State, tuple[State, str] | None], g: State) -> list[str]:
    names: list[str] = []
    link = came[g]
    while link is not None:
        g, name = link
        names.append(name)
        link = came[g]
    return names[::-1]
