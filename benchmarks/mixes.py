"""Clusters and mixes of jobs for the planner's benchmarks: models of GPT-3's sizes on nodes of eight A100s.

Throughput is what `profiles` predicts of each model, so every job's staircase is that of its
micro-batches, its layout and its memory.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

from unicorn_mgr.planner.problem import Demand, Node, Plan, Problem, Staircase
from unicorn_mgr.planner.table import without_slots
from unicorn_mgr.profiles.profile import predicted
from unicorn_mgr.profiles.shape import ModelShape
from unicorn_mgr.profiles.sizes import Sizes, sizes_of

DEVICE = "A100"
SLOTS_OF_NODE = 8
NODES_OF_RACK = 16


def _shape(parameters: float, layers: int, hidden: int, batch: int, tensor: int, pipeline: int) -> ModelShape:
    return ModelShape(
        parameters=parameters,
        layers=layers,
        hidden=hidden,
        sequence_length=2048,
        global_batch=batch,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        device=DEVICE,
    )


MODELS = {
    "1.3B": _shape(1.3e9, 24, 2048, 512, 1, 1),
    "7B": _shape(6.7e9, 32, 4096, 1024, 2, 1),
    "13B": _shape(13e9, 40, 5120, 1024, 4, 1),
    "70B": _shape(70e9, 80, 8192, 1024, 8, 4),
    "175B": _shape(175e9, 96, 12288, 1536, 8, 8),
}
"""GPT-3's (Brown et al., 2020: table 2.1) and a 70B, in sequences of 2,048, laid out as they fit."""


def sharded(shape: ModelShape) -> ModelShape:
    """Without pipelines: replicas of at most a node, which hold parts of all state (FSDP)."""
    return replace(shape, pipeline_parallel=1, sharding="full") if shape.pipeline_parallel > 1 else shape


def demand(job: str, shape: ModelShape, slots: int, weight: float) -> Demand:
    """A job that takes whatever its model allows on a cluster of so many slots."""
    sizes = sizes_of(shape)
    assert sizes.maximum is not None
    return Demand(
        job=job,
        size_min=sizes.up_to(sizes.maximum)[0],
        size_max=min(slots, sizes.maximum),
        weight=weight,
        throughput={DEVICE: staircase(shape, sizes, slots)},
        replica=shape.replica,
        within="node" if shape.replica <= SLOTS_OF_NODE else "domain",
    )


@cache
def staircase(shape: ModelShape, sizes: Sizes, slots: int) -> Staircase:
    """Sizes at which it runs faster than at any smaller one."""
    rising: list[tuple[int, float]] = []
    profile = predicted(shape, sizes, slots)
    for size in profile.sizes:
        if not rising or profile.at(size) > rising[-1][1]:
            rising.append((size, profile.at(size)))
    return tuple(rising)


def nodes(slots: int) -> tuple[Node, ...]:
    """Full nodes, in racks."""
    count = slots // SLOTS_OF_NODE
    of_node = tuple(range(SLOTS_OF_NODE))
    return tuple(Node(f"n{i:05d}", of_node, DEVICE, domain=f"rack {i // NODES_OF_RACK}") for i in range(count))


BATCHES = (512, 1024, 2048, 4096, 8192)


def mix(chance: random.Random, slots: int, jobs: int, *, pipelines: bool) -> Problem:
    """Jobs of random model, batch and weight, none of which runs yet."""
    demands = []
    for i in range(jobs):
        shape = MODELS[chance.choice(sorted(MODELS))]
        shape = replace(shape if pipelines else sharded(shape), global_batch=chance.choice(BATCHES))
        demands.append(demand(f"job-{i}", shape, slots, chance.choice((0.5, 0.8, 1.0, 1.5, 2.0))))
    return Problem(nodes(slots), tuple(demands))


def carried_out(problem: Problem, plan: Plan) -> Problem:
    """The same cluster once a plan is carried out."""
    demands = (replace(d, seats=plan.seats[d.job], members=len(plan.seats[d.job])) for d in problem.demands)
    return replace(problem, demands=tuple(demands))


def bereft(problem: Problem, chance: random.Random) -> Problem:
    """After the loss of a node on which somebody trains."""
    used = {node for d in problem.demands for node, _ in d.seats.values()}
    node = problem.by_name[chance.choice(sorted(used))]
    return without_slots(problem, node, node.slots)
