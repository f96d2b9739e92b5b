"""How long a step takes on a number of devices: a sum of known quantities, each times one fitted constant.

A job works through M micro-batches in a step, on x devices in r = x / replica replicas:

    rounds    m = ceil(M / r)                what the busiest replica computes, one after another
    turns     m + (pp - 1) / v               rounds, and those in which the pipeline fills and drains
    compute   turns x work of a micro-batch on a device / peak
    tensor    turns x all-reduces of activations among tensor-parallel devices / bandwidth
    data      gradients out and weights back, once a step / bandwidth
    shards    the same under full sharding, in each turn, mostly hidden behind computing
    waiting   a share of all this for each doubling of nodes: the slowest ends the step

    step = (compute / share of peak + tensor + data + shards) / (1 - waiting x doublings)

The rounds make a staircase: one replica more helps only where it saves a round.  What a model
does in its own way scales all sizes alike, and cancels as soon as one size is measured: then
only the ratio of two predictions counts (`profile.overlaid`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from unicorn_mgr.profiles.fitted import FITTED, Constants, Kind
from unicorn_mgr.profiles.shape import RECOMPUTING, WEIGHT_BYTES, ModelShape

WAITING_MAX = 0.5
"""No more than this share is lost by waiting, however many nodes: nobody has measured beyond 2^9 of them."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The quantities of one step, in seconds at peak rates; `doublings` counts nodes."""

    compute: float
    tensor: float
    data: float
    shards: float
    doublings: float


def rounds(micro_batches: int, replicas: int) -> int:
    """How many micro-batches the busiest replica computes in a step."""
    return -(-micro_batches // replicas)


def staircase(micro_batches: int, replicas: int) -> float:
    """How many replicas' work gets done at a time: M / ceil(M / r), at most r."""
    return micro_batches / rounds(micro_batches, replicas)


def step_seconds(shape: ModelShape, size: int, constants: Constants = FITTED) -> float:
    """How long a step takes on so many devices."""
    t = terms(shape, size)
    compute = t.compute / constants.share(kind_of(shape))
    # What cannot be hidden behind computing any more shows in full.
    shards = max(constants.shards * t.shards, t.shards - compute)
    busy = compute + constants.tensor * t.tensor + constants.data * t.data + shards
    return busy / (1 - min(constants.waiting * t.doublings, WAITING_MAX))


def throughput(shape: ModelShape, size: int, constants: Constants = FITTED) -> float:
    """Useful FLOP/s of all devices together."""
    return shape.flops_per_step / step_seconds(shape, size, constants)


def kind_of(shape: ModelShape) -> Kind:
    """Which share of the peak is reached depends on this."""
    return Kind(shape.device_type.family, shape.level, shape.is_mixture)


def terms(shape: ModelShape, size: int) -> Terms:
    """The quantities of a step on `size` devices."""
    replicas, rest = divmod(size, shape.replica)
    if replicas < 1 or rest:
        raise ValueError(f"{size} devices are no whole replicas of {shape.replica}")
    turns = rounds(shape.micro_batches, replicas) + (shape.pipeline_parallel - 1) / shape.virtual_stages
    exchange = _exchange_seconds(shape, size, replicas * shape.context_parallel)
    full = shape.sharding == "full"
    return Terms(
        compute=turns * _compute_seconds(shape),
        tensor=turns * _tensor_seconds(shape),
        data=0.0 if full else exchange,
        shards=turns * exchange if full else 0.0,
        doublings=math.log2(max(1.0, size / shape.devices_per_node)),
    )


def _compute_seconds(shape: ModelShape) -> float:
    """Of one micro-batch on each device of a replica; attention is never computed in fewer than 16 bits."""
    precise = shape.device_type.peak("32" if shape.level == "32" else "16")
    token = shape.matrix_flops / shape.device_type.peak(shape.level) + shape.attention_flops / precise
    again = RECOMPUTING if shape.recompute else 1.0
    return token * again * shape.micro_batch * shape.sequence_length / shape.replica


def _tensor_seconds(shape: ModelShape) -> float:
    """Of one micro-batch: two all-reduces per layer forwards, two backwards, two more if recomputed."""
    degree = shape.tensor_parallel
    tokens = shape.micro_batch * shape.sequence_length / shape.context_parallel
    layers = shape.depth / shape.pipeline_parallel * (6 if shape.recompute else 4)
    volume = layers * tokens * shape.width * WEIGHT_BYTES * 2 * (degree - 1) / degree
    return volume / (shape.device_type.link if degree <= _linked(shape) else shape.device_type.network)


def _exchange_seconds(shape: ModelShape, size: int, copies: int) -> float:
    """Of gradients among copies of a weight, and of weights back, in rings.

    A ring enters each node once, through the network cards of all its members there.
    """
    volume = 3 * WEIGHT_BYTES * shape.held * (copies - 1) / copies
    members = max(1, shape.devices_per_node // shape.tensor_parallel)
    across = min(shape.device_type.link, shape.device_type.network * members)
    return volume / (shape.device_type.link if size <= _linked(shape) else across)


def _linked(shape: ModelShape) -> int:
    return max(shape.devices_per_node, shape.device_type.linked)
