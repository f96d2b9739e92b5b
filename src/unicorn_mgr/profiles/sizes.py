"""Which numbers of slots a job may have: whole replicas, within limits, and large enough for its memory."""

from __future__ import annotations

from dataclasses import dataclass

from unicorn_mgr.profiles.problem import ProfileError, whole
from unicorn_mgr.profiles.shape import ModelShape, fitting


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that a job may have."""

    replica: int = 1
    """Slots that hold one copy of the model: every size is a multiple."""
    minimum: int = 1
    maximum: int | None = None
    listed: tuple[int, ...] | None = None
    """Only these, if not None."""

    def __post_init__(self) -> None:
        """Refuse limits that leave no size."""
        whole("replica_size", self.replica)
        whole("min", self.minimum)
        if self.maximum is not None:
            whole("max", self.maximum)
            if self.maximum < self.minimum:
                raise ProfileError(f"max: {self.maximum} is below min, {self.minimum}: want at least as many")
            if self.maximum // self.replica * self.replica < self.minimum:
                raise ProfileError(
                    f"max: no multiple of replica_size {self.replica} lies between min {self.minimum} and "
                    f"max {self.maximum}: want max {self._first()} or more"
                )
        for size in self.listed or ():
            whole("sizes", size)
            if not self._within(size):
                raise ProfileError(f"sizes: {size}: want {self._limits}")
        if self.listed is not None:
            if not self.listed:
                raise ProfileError("sizes: the list is empty: want at least one size, or no list")
            object.__setattr__(self, "listed", tuple(sorted(set(self.listed))))

    @property
    def rule(self) -> str:
        """In words."""
        return ", ".join(map(str, self.listed)) if self.listed else self._limits

    @property
    def _limits(self) -> str:
        among = f"multiples of {self.replica} " if self.replica > 1 else ""
        return f"{among}from {self.minimum} " + (f"to {self.maximum}" if self.maximum is not None else "on")

    def __contains__(self, size: int) -> bool:
        return self._within(size) and (self.listed is None or size in self.listed)

    def up_to(self, slots: int) -> tuple[int, ...]:
        """All sizes of no more than so many slots, ascending."""
        most = slots if self.maximum is None else min(slots, self.maximum)
        if self.listed is not None:
            return tuple(size for size in self.listed if size <= most)
        return tuple(range(self._first(), most + 1, self.replica))

    def _first(self) -> int:
        return -(-self.minimum // self.replica) * self.replica

    def _within(self, size: int) -> bool:
        enough = size >= self.minimum and size % self.replica == 0
        return enough and (self.maximum is None or size <= self.maximum)


def smallest(shape: ModelShape) -> int:
    """The fewest devices, in whole replicas of this layout, whose memory holds the model."""
    if not shape.fits(shape.micro_batches):
        better = fitting(shape)
        raise ProfileError(
            f"model: {shape.parameters:g} parameters do not fit on {shape.device_type.name} with "
            f"tensor_parallel {shape.tensor_parallel}, pipeline_parallel {shape.pipeline_parallel}: want "
            f"tensor_parallel {better.tensor_parallel}, pipeline_parallel {better.pipeline_parallel}"
        )
    low, high = 1, shape.micro_batches
    while low < high:  # more replicas never need more memory each
        middle = (low + high) // 2
        low, high = (low, middle) if shape.fits(middle) else (middle + 1, high)
    return low * shape.replica


def sizes_of(
    shape: ModelShape, minimum: int = 1, maximum: int | None = None, listed: tuple[int, ...] | None = None
) -> Sizes:
    """A model's sizes: from what its memory needs to one replica per micro-batch, within the user's limits."""
    busy = shape.micro_batches * shape.replica
    needed = smallest(shape)
    if minimum > busy:
        raise ProfileError(
            f"min: {minimum} slots are more than {shape.micro_batches} micro-batches keep busy, {busy}: "
            "want a smaller min, a smaller micro_batch or a larger global_batch"
        )
    if maximum is not None and maximum < needed:
        raise ProfileError(f"max: {maximum} slots do not hold the model, {needed} do: want max {needed} or more")
    most = busy if maximum is None else min(busy, maximum)
    fit = None if listed is None else tuple(size for size in listed if needed <= size <= busy)
    if listed and not fit:
        raise ProfileError(f"sizes: none of {', '.join(map(str, listed))} is within {needed} to {busy}: want one")
    return Sizes(shape.replica, max(minimum, needed), most, fit)
