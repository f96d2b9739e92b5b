"""How property tests run, and worlds that are checked when a test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from unit.world import World

# A busy machine is no failure: what is too slow is measured in benchmarks, never asserted here.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")


@pytest.fixture(autouse=True)
def rules_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rules that undo each other are noticed at once."""
    monkeypatch.setattr("unicorn_mgr.coordinator.core.DECISIONS_MAX", 500)


@pytest.fixture
def new_world() -> Iterator[Callable[..., World]]:
    """Makes worlds; at the end each one's journal must lead to the state it lived."""
    made: list[World] = []

    def make(nodes: int = 3, slots: int = 1, **numbers: float) -> World:
        made.append(World(nodes, slots, **numbers))
        return made[-1]

    yield make
    for world in made:
        world.check_replay()


@pytest.fixture
def world(new_world: Callable[..., World]) -> World:
    """Three nodes of one slot."""
    return new_world()
