"""The deal: whatever the members hold, every micro-batch is counted once and everybody can catch up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unicorn_mgr.model import INITIAL, NO_STATE, Holdings
from unicorn_mgr.transition.deal import Deal, LateBuckets, LateState, deal, standstill

BUCKETS = 3
MICRO_BATCHES = 7


@st.composite
def holdings_of_members(draw: st.DrawFn) -> dict[str, Holdings]:
    """What up to five members could publish, clashes included."""
    top = draw(st.integers(INITIAL, 3))
    bits = st.lists(st.booleans(), min_size=BUCKETS, max_size=BUCKETS).map(tuple)
    found = {}
    for name in draw(st.permutations(["a/0.0", "a/1.0", "a/2.1", "a/3.0", "a/4.7"]))[: draw(st.integers(1, 5))]:
        applied = draw(st.sampled_from([NO_STATE, top, top, top, max(top - 1, NO_STATE), max(top - 2, NO_STATE)]))
        if applied == NO_STATE:
            found[name] = Holdings()
            continue
        held = draw(st.lists(st.integers(0, MICRO_BATCHES - 1), unique=True, max_size=4))
        kept = draw(bits) if applied > INITIAL else ()
        found[name] = Holdings(applied, tuple(sorted(held)), draw(bits), kept)
    return found


def ahead_of(holdings: dict[str, Holdings]) -> list[str]:
    top = max(h.applied for h in holdings.values())
    return [m for m, h in holdings.items() if h.applied == top]


def dealt(holdings: dict[str, Holdings]) -> Deal:
    return deal(list(holdings), holdings, MICRO_BATCHES, BUCKETS)


@given(holdings_of_members())
def test_every_micro_batch_is_counted_once(holdings: dict[str, Holdings]) -> None:
    agreed = dealt(holdings)
    todo = [n for numbers in agreed.todo.values() for n in numbers]
    if max(h.applied for h in holdings.values()) == NO_STATE:
        assert sorted(todo) == list(range(MICRO_BATCHES))
        return
    if None not in agreed.reduced:
        assert todo == [], "all sums are there: nothing is left to compute"
        return
    kept = [n for m in ahead_of(holdings) if m not in agreed.voided for n in holdings[m].held]
    assert sorted([*kept, *todo]) == list(range(MICRO_BATCHES))


@given(holdings_of_members())
def test_whoever_is_promised_something_is_promised_it_by_one_that_has_it(holdings: dict[str, Holdings]) -> None:
    agreed = dealt(holdings)
    ahead = ahead_of(holdings)
    if holdings[ahead[0]].applied == NO_STATE:
        assert agreed.late == {m: LateState(next(iter(holdings))) for m in list(holdings)[1:]}
        return
    for b, source in enumerate(agreed.reduced):
        having = [m for m in ahead if holdings[m].reduced[b]]
        assert source == (having[0] if having else None)
    assert agreed.late.keys() == holdings.keys() - set(ahead)
    for member, route in agreed.late.items():
        if isinstance(route, LateState):
            assert route.source in ahead
            continue
        assert isinstance(route, LateBuckets)
        assert holdings[member].applied == agreed.step - 2
        for b, source in enumerate(route.sources):
            assert holdings[member].reduced[b] if source is None else holdings[source].kept[b]


@given(holdings_of_members())
def test_one_step_late_is_served_from_buckets_whenever_they_are_all_there(holdings: dict[str, Holdings]) -> None:
    agreed = dealt(holdings)
    ahead = ahead_of(holdings)
    for member, route in agreed.late.items():
        mine = holdings[member]
        if mine.applied in (NO_STATE, agreed.step - 1) or mine.applied != agreed.step - 2:
            continue
        there = all(mine.reduced[b] or any(holdings[a].kept[b] for a in ahead) for b in range(BUCKETS))
        assert isinstance(route, LateBuckets) == there


@given(holdings_of_members())
def test_a_sum_that_clashes_with_an_earlier_members_is_given_up(holdings: dict[str, Holdings]) -> None:
    agreed = dealt(holdings)
    claimed: set[int] = set()
    for member in ahead_of(holdings):
        clashes = not claimed.isdisjoint(holdings[member].held)
        assert (member in agreed.voided) == clashes
        if not clashes:
            claimed.update(holdings[member].held)


@given(holdings_of_members())
def test_no_member_is_dealt_more_while_another_has_less(holdings: dict[str, Holdings]) -> None:
    agreed = dealt(holdings)
    ahead = ahead_of(holdings)
    loads = {
        m: len(agreed.todo[m]) + (len(h.held) if m in ahead and m not in agreed.voided else 0)
        for m, h in holdings.items()
    }
    for member, numbers in agreed.todo.items():
        if numbers:
            assert loads[member] <= min(loads.values()) + 1


@given(holdings_of_members())
def test_every_member_derives_the_same_deal(holdings: dict[str, Holdings]) -> None:
    """Only the membership has an order; the holdings come in any."""
    members = list(holdings)
    shuffled = dict(sorted(holdings.items(), key=lambda item: item[0][::-1]))
    assert deal(members, shuffled, MICRO_BATCHES, BUCKETS) == deal(members, holdings, MICRO_BATCHES, BUCKETS)


def test_after_the_last_step_nothing_is_left_to_do() -> None:
    holdings = {"a/0.0": Holdings(9, (), (), (True,)), "a/1.0": Holdings(8, (1,), (False,))}
    agreed = deal(list(holdings), holdings, 0, 0)
    assert agreed.todo == {"a/0.0": (), "a/1.0": ()}
    assert agreed.late == {"a/1.0": LateBuckets(("a/0.0",))}


@given(holdings_of_members())
def test_all_stand_still_after_the_newest_step_that_anybody_has_begun(holdings: dict[str, Holdings]) -> None:
    after = standstill(holdings.values())
    top = max(h.applied for h in holdings.values())
    if top == NO_STATE:
        assert after is None
    else:
        assert after == top + any(h.reduced for h in holdings.values() if h.applied == top)


def test_nothing_is_begun_only_to_stand_still() -> None:
    between = Holdings(4, kept=(True,))
    begun = Holdings(4, (), (False,))
    assert standstill([between, between]) == 4
    assert standstill([between, Holdings(3, (1,), (True,))]) == 4, "one that is late catches up"
    assert standstill([between, begun]) == 5
