"""Faults, drawn from models of them: a function of scenario, models and seed, and of nothing else.

Each model draws from a generator of its own, so what is added behind it leaves its moments and causes as they are.
Whom a fault hits is decided in the order of time over all models: what is away is not lost once more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Literal

from unicorn_mgr.simulator.scenario import DAY, Fault, Kind, Scenario

GUESSES = 20
"""At a node that is up, before all that are up are listed: nearly all are."""


@dataclass(frozen=True, slots=True)
class Repairs:
    """How long it takes until nodes are as before."""

    kind: Literal["fixed", "exponential", "lognormal", "never"] = "never"
    mean_seconds: float = 0.0
    sigma: float = 1.0
    """Of the logarithm, of a lognormal one."""

    def draw(self, chance: Random) -> float:
        """Seconds."""
        match self.kind:
            case "fixed":
                return self.mean_seconds
            case "exponential":
                return chance.expovariate(1 / self.mean_seconds)
            case "lognormal":
                return chance.lognormvariate(math.log(self.mean_seconds) - self.sigma**2 / 2, self.sigma)
            case "never":
                return math.inf


@dataclass(frozen=True, slots=True)
class Cause:
    """What breaks, and what becomes of it."""

    name: str
    kind: Kind
    share: float = 1.0
    """Among the causes of its model, in any unit."""
    repairs: Repairs = Repairs()
    slowness: float = 1.0


@dataclass(frozen=True, slots=True)
class Moment:
    """A fault to be; what is None is drawn."""

    at: float
    cause: Cause
    nodes: tuple[int, ...] | None = None
    slot: int | None = None
    repair_seconds: float | None = None


@dataclass(frozen=True)
class Drawn:
    """Faults at random moments: Poisson's, or exactly so many anywhere in the scenario."""

    causes: tuple[Cause, ...]
    per_day: float = 0.0
    times: int = 0
    burst: int = 1
    """Nodes that each of them hits."""
    burst_within: Literal["domain", "cluster"] = "domain"
    offenders: float = 0.0
    """Share of the nodes, chosen once, ..."""
    offences: float = 0.0
    """... that this share of the faults hits."""

    def moments(self, seconds: float, chance: Random) -> Iterator[Moment]:
        """In no order."""
        for at in self._times(seconds, chance):
            yield Moment(at, chance.choices(self.causes, self._shares)[0])

    @cached_property
    def _shares(self) -> tuple[float, ...]:
        return tuple(cause.share for cause in self.causes)

    def _times(self, seconds: float, chance: Random) -> Iterator[float]:
        for _ in range(self.times):
            yield chance.uniform(0, seconds)
        at = 0.0
        while self.per_day and (at := at + chance.expovariate(self.per_day / DAY)) < seconds:
            yield at


@dataclass(frozen=True)
class Recorded:
    """Faults that have happened."""

    recorded: tuple[Moment, ...]
    spread_seconds: float = 0.0
    """Each happened at any moment within so long from when it is said to; 0: exactly then."""
    burst: int = 1
    burst_within: Literal["domain", "cluster"] = "domain"
    offenders: float = 0.0
    offences: float = 0.0

    def moments(self, seconds: float, chance: Random) -> Iterator[Moment]:
        """Those within the scenario, in no order."""
        for moment in self.recorded:
            at = moment.at + (chance.uniform(0, self.spread_seconds) if self.spread_seconds else 0.0)
            if at < seconds:
                yield Moment(at, moment.cause, moment.nodes, moment.slot, moment.repair_seconds)


Model = Drawn | Recorded


def draw(scenario: Scenario, models: Sequence[Model], seed: int) -> tuple[Fault, ...]:
    """All faults of one history, in the order of time."""
    chances = [Random(f"{scenario.name} {seed} faults {number}") for number in range(len(models))]  # noqa: S311 - no secret
    victims = [_Victims(scenario, model, chance) for model, chance in zip(models, chances, strict=True)]
    planned = [
        (moment.at, number, place, moment)
        for number, (model, chance) in enumerate(zip(models, chances, strict=True))
        for place, moment in enumerate(model.moments(scenario.seconds, chance))
    ]
    away: dict[int, float] = {}
    found = []
    for at, number, _, moment in sorted(planned, key=lambda p: p[:3]):
        for node in [node for node, until in away.items() if until <= at]:
            del away[node]
        nodes = victims[number].of(moment, away)
        if nodes:
            found.append(_fault(moment, nodes, scenario, chances[number]))
        if nodes and moment.cause.kind is Kind.NODE:
            away.update(dict.fromkeys(nodes, at + found[-1].repair_seconds))
    return tuple(found)


def _fault(moment: Moment, nodes: tuple[int, ...], scenario: Scenario, chance: Random) -> Fault:
    cause = moment.cause
    slot = chance.randrange(scenario.slots)
    repair = cause.repairs.draw(chance) if cause.kind in {Kind.NODE, Kind.SLOW} else 0.0
    return Fault(
        at=moment.at,
        cause=cause.name,
        kind=cause.kind,
        nodes=nodes,
        slot=slot if moment.slot is None else moment.slot,
        repair_seconds=repair if moment.repair_seconds is None else moment.repair_seconds,
        slowness=cause.slowness if cause.kind is Kind.SLOW else 1.0,
    )


class _Victims:
    """Whom the faults of one model hit."""

    def __init__(self, scenario: Scenario, model: Model, chance: Random) -> None:
        self._scenario, self._model, self._chance = scenario, model, chance
        everybody = range(scenario.nodes)
        number = min(scenario.nodes - 1, max(1, round(model.offenders * scenario.nodes))) if model.offenders else 0
        self._offenders: Sequence[int] = sorted(chance.sample(everybody, number))
        known = frozenset(self._offenders)
        self._others: Sequence[int] = [node for node in everybody if node not in known] if known else everybody

    def of(self, moment: Moment, away: dict[int, float]) -> tuple[int, ...]:
        """Nodes that are up now, in their order; fewer than wanted where fewer are, none if there is none."""
        if moment.nodes is not None:
            return tuple(node for node in moment.nodes if node not in away)
        first = self._one(away)
        if first is None or self._model.burst == 1:
            return () if first is None else (first,)
        near = [node for node in self._near(first) if node not in away and node != first]
        more = self._chance.sample(near, min(self._model.burst - 1, len(near)))
        return tuple(sorted((first, *more)))

    def _one(self, away: dict[int, float]) -> int | None:
        guilty = bool(self._offenders) and self._chance.random() < self._model.offences
        first, second = (self._offenders, self._others) if guilty else (self._others, self._offenders)
        for among in (first, second):
            for _ in range(GUESSES if among else 0):
                node = self._chance.choice(among)
                if node not in away:
                    return node
            up = [node for node in among if node not in away]
            if up:
                return self._chance.choice(up)
        return None

    def _near(self, node: int) -> range:
        size = self._scenario.domain_nodes if self._model.burst_within == "domain" else 0
        if not size:
            return range(self._scenario.nodes)
        begin = node // size * size
        return range(begin, min(begin + size, self._scenario.nodes))
