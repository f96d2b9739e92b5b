"""Every interleaving of a small world stays exact and comes to its end; every planted mistake is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from protocol.step_model import Model, Scope, State, Stuck, Variant, Violation, explore


def test_three_workers_and_two_faults() -> None:
    assert explore(Scope(faults=2)) > 30_000


@pytest.mark.timeout(600)  # 15 s on an idle core, of which a busy machine gives a small part
def test_three_workers_two_faults_and_a_join() -> None:
    assert explore(Scope(faults=2, join=True)) > 150_000


FOUND_AS: dict[Variant, tuple[type[Exception], str]] = {
    Variant.PREFIX: (Violation, "which has not got it"),
    Variant.MEMBERSHIP: (Violation, r"applies step 0 with bucket 0 = \(0, 1, 1, 2\)"),
    Variant.UNFROZEN: (Violation, "applies step 0 with bucket 0 ="),
    Variant.OLD_HOLDINGS: (Violation, "applies step 1 with bucket 0 ="),
    Variant.NO_FALLBACK: (Stuck, "can't reach the end; story"),
    Variant.LEAVE: (Stuck, "can't reach the end; story"),
}


@pytest.mark.parametrize("variant", [v for v in Variant if v is not Variant.AS_RULED], ids=lambda v: v.name)
def test_a_wrong_reading_of_the_rules_is_found(variant: Variant) -> None:
    failure, says = FOUND_AS[variant]
    with pytest.raises(failure, match=says):
        explore(Scope(faults=1), variant)


def test_forgetting_history_changes_no_future() -> None:
    """States that `forget` makes equal have the same moves, so no interleaving is left out."""
    model = Model(Scope(workers=3, micro_batches=2, buckets=1, steps=1, faults=1, join=True))
    raw = _reachable(model, lambda g: g)
    reduced = _reachable(model, model.forget)
    assert len(reduced) < len(raw)
    assert {model.forget(g) for g in raw} == reduced


def _reachable(model: Model, canonical: Callable[[State], State]) -> set[State]:
    found = {canonical(model.start())}
    waiting = list(found)
    while waiting:
        for _, after in model.moves(waiting.pop()):
            state = canonical(after)
            if state not in found:
                found.add(state)
                waiting.append(state)
    return found
