"""Everything that makes a worker a replica: collected, sent, stored, and put in place.

The state is a tree of plain values and tensors: parameters, buffers, optimizers, what the
user named in `state=`, the random state between micro-batches, and how far the job is.  On
the wire and in a checkpoint it is a skeleton (JSON, with a reference for each tensor) and
a list of tensors with names.  No pickle is involved.

Tensors of the receiver that fit are filled in place; an optimizer's moments are assigned
directly, since `load_state_dict` casts them to the parameter's dtype.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from unicorn_mgr.transition.layout import Box, Piece
from unicorn_mgr.worker import randomness
from unicorn_mgr.worker.checksum import checksum
from unicorn_mgr.worker.sharding import Part, is_sharded, matched, part_of, piece_of, restored

Tree = Any


class Stateful(Protocol):
    """A scheduler, a scaler, an averaged model: anything that can be saved and loaded."""

    def state_dict(self) -> dict[str, Any]:
        """The present state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take over a state."""


class StateError(ValueError):
    """The state can't be sent or stored, or does not fit this model."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A state ready to travel: `tensors[i]` is called `names[i]`; the skeleton refers to them by index."""

    skeleton: str
    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors)

    def described(self) -> dict[str, Any]:
        """Everything but the bytes of its tensors."""
        shapes = [
            [name, str(t.dtype).removeprefix("torch."), list(t.shape), t.device.type != "cpu"]
            for name, t in zip(self.names, self.tensors, strict=True)
        ]
        return {"skeleton": self.skeleton, "tensors": shapes}

    def checksum(self) -> int:
        """64 bits that depend on everything in it."""
        text = torch.frombuffer(bytearray(self.skeleton.encode()), dtype=torch.uint8)
        return checksum((text, *self.tensors))


def outlined(skeleton: str, kinds: Iterable[tuple[str, str, Sequence[int]]]) -> Packed:
    """A state of tensors without memory: of each its name, dtype and shape."""
    found = [(name, torch.empty(shape, dtype=getattr(torch, dtype), device="meta")) for name, dtype, shape in kinds]
    return Packed(skeleton, tuple(name for name, _ in found), tuple(tensor for _, tensor in found))


# -- trees to skeletons and back ------------------------------------------------------------


def pack(tree: Tree) -> Packed:
    """Take the tensors out of a tree.  They are referred to, not copied; of sharded ones, this worker's part."""
    names: dict[str, None] = {}
    tensors: list[torch.Tensor] = []

    def bare(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided or value.is_quantized:
                raise StateError(f"{path.lstrip('.')}: a tensor of layout {value.layout} can't be sent: make it dense")
            names[_unlike(names, path)] = None
            tensors.append(part_of(value).resolve_conj().resolve_neg())
            return _reference(value, len(tensors) - 1, path)
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return {"~": "float", "v": value.hex()}
        if isinstance(value, bytes):
            return {"~": "bytes", "v": base64.b64encode(value).decode()}
        if isinstance(value, list | tuple):
            items = [bare(item, f"{path}.{i}") for i, item in enumerate(value)]
            return items if type(value) is list else {"~": "tuple", "v": items}
        if isinstance(value, Mapping):
            return {"~": "dict", "v": [[_key(k, path), bare(v, f"{path}.{k}")] for k, v in value.items()]}
        if isinstance(value, set | frozenset):
            return {"~": "set", "v": [bare(item, path) for item in sorted(value, key=repr)]}
        if hasattr(value, "item") and getattr(value, "shape", None) == ():
            return bare(value.item(), path)  # a numpy number
        raise StateError(f"{path.lstrip('.')}: a {type(value).__name__} can't be sent: leave it out of state=")

    skeleton = json.dumps(bare(tree, ""), allow_nan=False, separators=(",", ":"))
    return Packed(skeleton, tuple(n.lstrip(".") for n in names), tuple(tensors))


def unpack(packed: Packed) -> Tree:
    """Inverse of `pack`, with a `Part` for each part."""

    def full(value: Any) -> Any:
        if isinstance(value, list):
            return [full(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind = value["~"]
        if kind == "tensor":
            return packed.tensors[value["i"]]
        if kind == "part":
            part = packed.tensors[value["i"]]
            box = Box(tuple(value["at"]), tuple(part.shape))
            return Part(part, Piece(tuple(value["of"]), box, part.element_size()))
        if kind == "float":
            return float.fromhex(value["v"])
        if kind == "bytes":
            return base64.b64decode(value["v"])
        items = value["v"]
        if kind == "dict":
            return {full(k) if isinstance(k, dict) else k: full(v) for k, v in items}
        restored = [full(item) for item in items]
        return tuple(restored) if kind == "tuple" else set(restored)

    return full(json.loads(packed.skeleton))


def _reference(tensor: torch.Tensor, index: int, path: str) -> dict[str, Any]:
    if not is_sharded(tensor):
        return {"~": "tensor", "i": index}
    try:
        piece = piece_of(tensor)
    except ValueError as wrong:
        raise StateError(f"{path.lstrip('.')}: it can't be told which part of it is here: {wrong}") from None
    return {"~": "part", "i": index, "of": piece.shape, "at": piece.box.at}


def _unlike(names: Mapping[str, None], path: str) -> str:
    """A name that no tensor has yet: paths of different trees of keys may read the same."""
    name, copies = path, 1
    while name in names:
        copies += 1
        name = f"{path}~{copies}"
    return name


def _key(key: Any, path: str) -> Any:
    if isinstance(key, bool | int | str) or key is None:
        return key
    raise StateError(f"{path.lstrip('.')}: a key of type {type(key).__name__} can't be sent: use str or int")


# -- the state of a worker ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the job is: travels with the parameters."""

    applied: int
    ends_after: int
    """The last step, once a member has asked to stop early; -1: not asked."""
    generation: int
    """Of the checkpoint directory's lineage."""


class ReplicaState:
    """The objects that hold a worker's state."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        extra: Mapping[str, Stateful],
    ) -> None:
        self.model = model
        self.optimizers = list(optimizers)
        self.extra = dict(extra)
        self.parameters = dict(model.named_parameters())
        """A module that gathers its parameters for a forward pass has others meanwhile."""

    def collect(self, progress: Progress, random: randomness.Raw) -> Packed:
        """The whole state, its tensors referred to and not copied.

        `random` is the random state at the head of the open step: that is where another
        worker takes the loop up.
        """
        return pack(
            {
                "model": self._tensors(),
                "optimizer": [self._optimizer(o) for o in self.optimizers],
                "state": {name: item.state_dict() for name, item in sorted(self.extra.items())},
                "random": randomness.portable(random),
                "progress": [progress.applied, progress.ends_after, progress.generation],
            }
        )

    def held_bytes(self) -> int:
        """Of the tensors of model and optimizers on this worker."""
        found = _tensors_in([self._tensors(), [self._optimizer(o) for o in self.optimizers]])
        return sum(part.numel() * part.element_size() for part in map(part_of, found))

    def homes(self) -> dict[str, torch.Tensor]:
        """By name: tensors that may be filled in place when a state arrives."""
        packed = self.collect(Progress(0, 0, 0), randomness.capture())
        kept = ("model.", "optimizer.")
        return {
            n: t for n, t in zip(packed.names, packed.tensors, strict=True) if n.startswith(kept) and t.is_contiguous()
        }

    def adopt(self, packed: Packed) -> Progress:
        """As `adopt_tree`."""
        return self.adopt_tree(unpack(packed))

    def adopt_tree(self, tree: Tree) -> Progress:
        """Put a state in place; returns how far it is.

        Raises `StateError` if it is another job's; then nothing has changed.
        """
        self.check(tree)
        self._check_parts(tree)
        with torch.no_grad():
            for name, whole in self._tensors().items():
                tensor, saved = part_of(whole), _bare(tree["model"][name])
                if tensor.data_ptr() != saved.data_ptr() or tensor.numel() == 0:
                    tensor.copy_(saved)
        for optimizer, saved in zip(self.optimizers, tree["optimizer"], strict=True):
            _adopt_optimizer(optimizer, self._named(optimizer), saved)
        for name, item in self.extra.items():
            item.load_state_dict(restored(tree["state"][name], item.state_dict()))
        randomness.restore(tree["random"])
        return Progress(*tree["progress"])

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {**self.parameters, **dict(self.model.named_buffers())}

    def matched(self, tree: Tree, made: Callable[[torch.Tensor | Part, Any], Any]) -> Tree:
        """A state of this job with what is made of each tensor or part, and of what this worker has in its place."""
        here = self._tensors()
        return {
            **tree,
            "model": {name: matched(tree["model"][name], tensor, made) for name, tensor in here.items()},
            "optimizer": [
                {
                    "groups": matched(of["groups"], None, made),
                    "state": {n: matched(values, self.parameters[n], made) for n, values in of["state"].items()},
                }
                for of in tree["optimizer"]
            ],
            "state": {n: matched(tree["state"][n], item.state_dict(), made) for n, item in self.extra.items()},
            "random": matched(tree["random"], None, made),
        }

    def own(self, tree: Tree) -> Tree:
        """Without the tensors of a model that other stages of a pipeline have."""
        here = self._tensors()
        return {
            **tree,
            "model": {name: leaf for name, leaf in tree["model"].items() if name in here},
            "optimizer": [
                {**of, "state": {name: values for name, values in of["state"].items() if name in here}}
                for of in tree["optimizer"]
            ],
        }

    def check(self, tree: Tree) -> None:
        """Raise `StateError` if `tree` is not a state of this job."""
        mine, saved = self._tensors(), tree["model"]
        if set(mine) != set(saved):
            odd = sorted(set(mine) ^ set(saved))[0]
            where = "this model" if odd in mine else "the state"
            raise StateError(f"model.{odd}: only {where} has it")
        for name, tensor in mine.items():
            here, there = tuple(tensor.shape), piece_in(saved[name]).shape
            if here != there:
                raise StateError(f"model.{name}: {there} in the state, {here} here")
        if len(tree["optimizer"]) != len(self.optimizers):
            raise StateError(f"optimizer: the state has {len(tree['optimizer'])}, this job {len(self.optimizers)}")
        for optimizer, of in zip(self.optimizers, tree["optimizer"], strict=True):
            groups, named = optimizer.param_groups, self._named(optimizer)
            if len(of["groups"]) != len(groups):
                raise StateError(f"optimizer: {len(of['groups'])} parameter groups in the state, {len(groups)} here")
            if odd := next((name for name in of["state"] if name not in named), None):
                raise StateError(f"optimizer: the state has {odd}, and no optimizer here trains it in its place")
        if sorted(tree["state"]) != sorted(self.extra):
            raise StateError(f"state=: the state has {sorted(tree['state'])}, this job {sorted(self.extra)}")

    def _check_parts(self, tree: Tree) -> None:
        """Raise `StateError` if `tree` has other parts of the tensors than this worker."""
        for name, tensor in self._tensors().items():
            here, there = piece_of(tensor).box, piece_in(tree["model"][name]).box
            if here != there:
                raise StateError(
                    f"model.{name}: {there.lengths} from {there.at} in the state, {here.lengths} from {here.at} here"
                )

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        # In order of parameters, not of first use: every replica must send the same names.
        named, state = self._named(optimizer), optimizer.state
        return {"groups": groups, "state": {name: dict(state[p]) for name, p in named.items() if p in state}}

    def _named(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.nn.Parameter]:
        """Its parameters, by the name that they have in the model on whatever worker."""
        mine = {id(p) for g in optimizer.param_groups for p in g["params"]}
        return {name: p for name, p in self.parameters.items() if id(p) in mine}


def piece_in(saved: torch.Tensor | Part) -> Piece:
    """Which part of a tensor a state has."""
    return saved.piece if isinstance(saved, Part) else piece_of(saved)


def _tensors_in(tree: Tree) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping | list | tuple):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _tensors_in(value)


def _bare(saved: torch.Tensor | Part) -> torch.Tensor:
    return saved.tensor if isinstance(saved, Part) else saved


def _adopt_optimizer(
    optimizer: torch.optim.Optimizer, named: Mapping[str, torch.nn.Parameter], saved: dict[str, Any]
) -> None:
    for group, values in zip(optimizer.param_groups, saved["groups"], strict=True):
        for key, value in values.items():
            present = group.get(key)
            if isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor):
                present.copy_(value)
            else:
                group[key] = value
    for p in named.values():
        optimizer.state.pop(p, None)
    for name, values in saved["state"].items():
        optimizer.state[named[name]] = restored(values, named[name])
