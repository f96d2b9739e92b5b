"""Small scenarios and policies whose figures can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from unicorn_mgr.simulator.costs import Costs
from unicorn_mgr.simulator.history import Doing, History
from unicorn_mgr.simulator.scenario import Fault, Kind, Scenario, Work
from unicorn_mgr.simulator.study import Situation

HOUR = 3_600.0

TOY = Scenario(
    name="toy",
    about="two jobs on four nodes for ten hours",
    nodes=4,
    slots=2,
    gpus_per_slot=8,
    seconds=10 * HOUR,
    jobs=(
        Work("big", ((2, 2e15), (4, 4e15)), size_min=2, size_max=4, weight=2.0, model="7B"),
        Work("small", ((2, 1e15), (4, 2e15)), size_min=2, size_max=4),
    ),
)
FULL = {"big": 4e15, "small": 2e15}
FULL_WAF = 2 * 4e15 + 2e15

COSTS = Costs(**dict.fromkeys(Costs.__dataclass_fields__, 100.0))


def toy_faults(seed: int) -> tuple[Fault, ...]:
    """Four, in order."""
    chance = Random(f"toy {seed}")
    moments = sorted(chance.uniform(1.0, 8.0) * HOUR for _ in range(4))
    kinds = (Kind.NODE, Kind.PROCESS, Kind.HANG, Kind.LINK)
    return tuple(
        Fault(at, f"cause {kind}", kind, (i,), repair_seconds=HOUR / 2)
        for i, (at, kind) in enumerate(zip(moments, kinds, strict=True))
    )


SITUATION = Situation(TOY, toy_faults, COSTS)


def undisturbed(policy: str, seed: int = 1, faults: Sequence[Fault] = ()) -> History:
    """Both jobs train from the beginning, each on half of the cluster."""
    lived = History(policy, TOY, seed, dict(FULL), tuple(faults))
    for job, flops in FULL.items():
        lived.becomes(0.0, job, Doing.TRAINING, 4, flops)
    return lived


@dataclass(frozen=True, slots=True)
class Stops:
    """Whatever happens, the big job is stopped: unnoticed as long as a framework's timeout, then for its repair."""

    name: str = "stops"
    share: float = 1.0
    """Of that it needs so much."""
    lived: list[str] = field(default_factory=list)

    def live(self, scenario: Scenario, faults: Sequence[Fault], costs: Costs, seed: int) -> History:
        self.lived.append(f"{seed} {scenario.name}")
        history = History(self.name, scenario, seed, dict(FULL), tuple(faults))
        for job, flops in FULL.items():
            history.becomes(0.0, job, Doing.TRAINING, 4, flops)
        history.idle.append((0.0, 0))
        for fault, following in zip(faults, [*faults[1:], None], strict=True):
            limit = following.at if following is not None else scenario.seconds
            noticed = min(limit, fault.at + costs.timeout_seconds * self.share)
            again = min(limit, noticed + fault.repair_seconds * self.share)
            history.becomes(fault.at, "big", Doing.DETECTION, 4, 0.0, fault.cause)
            history.becomes(noticed, "big", Doing.TRANSITION, 4, 0.0, fault.cause)
            history.becomes(again, "big", Doing.TRAINING, 4, FULL["big"])
            redone = scenario.jobs[0].checkpoint_seconds / 2 * self.share
            history.repeat(again, "big", FULL["big"] * redone, fault.cause)
            history.moves += 1
        return history
