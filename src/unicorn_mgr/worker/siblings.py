"""The workers of one replica decide as one.

A replica is one member of its job, however many workers it has.  Between two collectives of the model
inside it, each of them may have heard of a newer membership or not, and seen its gradients reduced or not:
at every place where the loop chooses what to do next they agree, by the smallest of collectives, so that all
choose the same.  The replica stands or falls as a whole, so what they agree by lives as long as they do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from unicorn_mgr.model import DATA_AXES, STAGE_AXIS


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker stands in its replica."""

    position: int = 0
    """Its rank inside, the last axis running fastest."""
    size: int = 1
    coordinate: int = 0
    """Which micro-batch of a round is its own."""
    width: int = 1
    """Micro-batches in a round."""
    speaks: bool = True
    """What it knows of a micro-batch is counted; others know the same one."""
    stage: int = 0
    """Which part of the model it has: along a pipeline all have other parameters."""
    stages: int = 1
    axes: Mapping[str, int] = field(default_factory=dict)


def place_of(axes: Mapping[str, int], position: int) -> Place:
    """The place at a position of a replica with these axes, the last one running fastest."""
    coordinate, width, speaks, stage, stages, rest = 0, 1, True, 0, 1, position
    for name, size in reversed(list(axes.items())):
        rest, along = divmod(rest, size)
        if name in DATA_AXES:
            coordinate, width = coordinate + along * width, width * size
        elif name == STAGE_AXIS:
            stage, stages = along, size
        else:
            speaks = speaks and along == 0
    return Place(position, math.prod(axes.values()), coordinate, width, speaks, stage, stages, axes)


class Siblings(Protocol):
    """How the workers of a replica agree.  Each call is a collective: all make the same ones in the same order."""

    @property
    def place(self) -> Place:
        """This worker's."""

    def largest(self, *values: int) -> tuple[int, ...]:
        """Of each value the largest that any of them has."""

    def add(self, tensor: torch.Tensor, alike: bool = False) -> None:
        """Sum a tensor over all of them, in place; `alike`: over those that hold the same part of the model."""


def of_each(siblings: Siblings, value: int) -> tuple[int, ...]:
    """Everybody's value, which is not negative, by position."""
    place = siblings.place
    return siblings.largest(*(value if at == place.position else 0 for at in range(place.size)))


class Single:
    """The only worker of its replica agrees with itself."""

    place = Place()

    def largest(self, *values: int) -> tuple[int, ...]:
        """Its own."""
        return values

    def add(self, tensor: torch.Tensor, alike: bool = False) -> None:
        """Nobody adds anything."""
