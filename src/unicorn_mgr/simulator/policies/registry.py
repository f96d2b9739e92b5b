"""All policies by name, as they are told of on the command line."""

from __future__ import annotations

from collections.abc import Callable

from unicorn_mgr.simulator.policies import Policy
from unicorn_mgr.simulator.policies.bounds import Clairvoyant, ClairvoyantUnbound, NoFault
from unicorn_mgr.simulator.policies.elastic import Bamboo, Elastic, Oobleck
from unicorn_mgr.simulator.policies.ours import Ours, WithoutLiveState, WithoutPartialReuse, WithoutPlanner
from unicorn_mgr.simulator.policies.restart import Megatron, RestartFast, Spares, Varuna, Waits
from unicorn_mgr.simulator.policies.rules import BySize, ByWeight, Equal

_ALL: tuple[Callable[[], Policy], ...] = (
    Ours,
    WithoutPlanner,
    WithoutPartialReuse,
    WithoutLiveState,
    Megatron,
    RestartFast,
    Waits,
    Spares,
    Elastic,
    Equal,
    ByWeight,
    BySize,
    Bamboo,
    Oobleck,
    Varuna,
    Clairvoyant,
    ClairvoyantUnbound,
    NoFault,
)

POLICIES: dict[str, Callable[[], Policy]] = {policy().name: policy for policy in _ALL}
