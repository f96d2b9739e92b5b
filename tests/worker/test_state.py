"""State travels as it is: every kind of value, every optimizer, no pickle; what can't travel is named."""

from __future__ import annotations

import collections
import io
import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unicorn_mgr.worker import randomness
from unicorn_mgr.worker.state import Packed, Progress, ReplicaState, StateError, pack, unpack
from unicorn_mgr.worker.transfer import bytes_of

PROGRESS = Progress(7, -1, 2)

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex128,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
]

SHAPES = [(), (0,), (3,), (2, 0, 3), (2, 3, 5)]


def travelled(packed: Packed) -> Packed:
    """As another process gets it: text, names, shapes and bytes."""
    arrived = []
    for t in packed.tensors:
        data = bytes(bytes_of(t.contiguous()))
        fresh = torch.zeros(t.shape, dtype=t.dtype)
        if data:
            bytes_of(fresh)[:] = data
        arrived.append(fresh)
    return Packed(json.loads(json.dumps(packed.skeleton)), packed.names, tuple(arrived))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and bytes(bytes_of(one.contiguous())) == bytes(bytes_of(other.contiguous()))
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


# -- trees ----------------------------------------------------------------------------------

_tensors = st.builds(
    lambda dtype, shape, seed: (
        torch.randint(0, 255, (*shape, dtype.itemsize), generator=torch.Generator().manual_seed(seed))
        .to(torch.uint8)
        .view(dtype)
        .reshape(shape)
        if dtype is not torch.bool
        else torch.ones(shape, dtype=dtype)
    ),
    st.sampled_from(DTYPES),
    st.sampled_from(SHAPES),
    st.integers(0, 1000),
)
_plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5), _tensors
)
_trees = st.recursive(
    _plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(), st.booleans(), st.none()), inner, max_size=3),
        st.sets(st.integers(), max_size=3),
    ),
    max_leaves=8,
)


@given(_trees)
def test_a_tree_arrives_as_it_was(tree: Any) -> None:
    assert same(unpack(travelled(pack(tree))), tree)


@given(_trees)
def test_every_tensor_has_a_name_of_its_own(tree: Any) -> None:
    packed = pack(tree)
    assert len(set(packed.names)) == len(packed.names) == len(packed.tensors)


def test_paths_that_read_the_same_get_different_names() -> None:
    tree = {"a": {"b.c": torch.ones(1), 0: torch.ones(2), "0": torch.ones(3)}, "a.b": {"c": torch.ones(4)}}
    packed = pack(tree)
    assert packed.names == ("a.b.c", "a.0", "a.0~2", "a.b.c~2")
    assert same(unpack(packed), tree)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tensor_of_any_dtype_arrives_bit_by_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    count = math.prod(shape)
    bits = (torch.arange(count * dtype.itemsize) % (2 if dtype is torch.bool else 256)).to(torch.uint8)
    tensor = bits.view(dtype).reshape(shape)
    arrived = unpack(travelled(pack({"x": tensor})))["x"]
    assert same(arrived, tensor)


def test_tensors_in_odd_memory_arrive_in_order() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tree = {"turned": base.t(), "strided": base[::2, ::3], "wide": torch.ones(1).expand(5), "conj": (base * 1j).conj()}
    arrived = unpack(travelled(pack(tree)))
    for name, tensor in tree.items():
        assert torch.equal(arrived[name], tensor), name


def test_relatives_of_plain_values_arrive_as_plain_values() -> None:
    Pair = collections.namedtuple("Pair", "x y")
    tree = {
        "ordered": collections.OrderedDict(b=1, a=2),
        "counter": collections.Counter("aab"),
        "pair": Pair(1, 2.5),
        "size": torch.Size([2, 3]),
        "float32": np.float32(0.5),
        "float64": np.float64(0.1),
        "int64": np.int64(1 << 40),
        "bool": np.bool_(1),
        "parameter": nn.Parameter(torch.ones(2)),
    }
    arrived = unpack(travelled(pack(tree)))
    assert arrived["ordered"] == {"b": 1, "a": 2}
    assert list(arrived["ordered"]) == ["b", "a"]
    assert arrived["counter"] == {"a": 2, "b": 1}
    assert arrived["pair"] == (1, 2.5)
    assert arrived["size"] == (2, 3)
    assert (arrived["float32"], arrived["float64"], arrived["int64"], arrived["bool"]) == (0.5, 0.1, 1 << 40, True)
    assert not arrived["parameter"].requires_grad


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"a": [1, {"b": object()}]}, "a.1.b: a object can't be sent: leave it out of state="),
        ({"f": len}, "f: a builtin_function_or_method can't be sent: leave it out of state="),
        ({"model": nn.Linear(1, 1)}, "model: a Linear can't be sent: leave it out of state="),
        ({"array": np.ones(3)}, "array: a ndarray can't be sent: leave it out of state="),
        ({"c": 1j}, "c: a complex can't be sent: leave it out of state="),
        ({"a": {(1, 2): 3}}, "a: a key of type tuple can't be sent: use str or int"),
        ({"a": {0.5: 3}}, "a: a key of type float can't be sent: use str or int"),
        ({"s": torch.eye(2).to_sparse()}, "s: a tensor of layout torch.sparse_coo can't be sent: make it dense"),
    ],
)
def test_what_can_not_travel_is_named(tree: Any, said: str) -> None:
    with pytest.raises(StateError) as refused:
        pack(tree)
    assert str(refused.value) == said


def test_the_checksum_depends_on_everything() -> None:
    base = {"x": torch.arange(6.0), "n": 1}
    sums = {
        pack(tree).checksum()
        for tree in (
            base,
            {**base, "n": 2},
            {**base, "m": 1},
            {**base, "x": torch.arange(6.0) * -1},
            {**base, "x": torch.arange(6.0).flip(0)},
        )
    }
    assert len(sums) == 5
    assert pack(base).checksum() == travelled(pack(base)).checksum()


# -- the state of a worker ------------------------------------------------------------------


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def one_step(net: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    inputs = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    def closure() -> float:
        optimizer.zero_grad()
        loss = net(inputs).square().mean()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)


MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD without state": lambda p: torch.optim.SGD(p, lr=0.1),
    "Adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "Adam with a tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "Adamax": torch.optim.Adamax,
    "ASGD": torch.optim.ASGD,
    "LBFGS": torch.optim.LBFGS,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "Rprop": torch.optim.Rprop,
}


@pytest.mark.parametrize("name", MAKERS)
def test_another_worker_goes_on_as_the_first_would(name: str) -> None:
    first, other = model(), model()
    optimizer, other_optimizer = MAKERS[name](first.parameters()), MAKERS[name](other.parameters())
    for seed in range(2):
        one_step(first, optimizer, seed)
    replica = ReplicaState(first, [optimizer], {})
    state = replica.collect(PROGRESS, randomness.capture())
    parts = zip(state.names, state.tensors, strict=True)
    assert replica.held_bytes() == sum(t.nbytes for name, t in parts if name.startswith(("model.", "optimizer.")))
    found = ReplicaState(other, [other_optimizer], {}).adopt(travelled(state))
    assert found == PROGRESS
    for seed in range(2, 4):
        one_step(first, optimizer, seed)
        one_step(other, other_optimizer, seed)
    assert same(dict(other.state_dict()), dict(first.state_dict()))
    assert same(other_optimizer.state_dict(), optimizer.state_dict())


def test_moments_keep_their_dtype() -> None:
    """`load_state_dict` would cast them to the parameter's."""
    states = []
    for fill in (3.14159, 0.0):
        p = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        holder = nn.ParameterList([p])
        optimizer = torch.optim.SGD([p], lr=0.1)
        optimizer.state[p] = {"moment": torch.full((3,), fill, dtype=torch.float32)} if fill else {}
        states.append(ReplicaState(holder, [optimizer], {}))
    states[1].adopt(travelled(states[0].collect(PROGRESS, randomness.capture())))
    (found,) = states[1].optimizers[0].state.values()
    assert found["moment"].dtype is torch.float32
    assert found["moment"].tolist() == pytest.approx([3.14159] * 3)


def test_state_in_a_pickle_or_a_program_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was pickled")

    for name in ("dumps", "dump", "loads", "load", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "save", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    one_step(net, optimizer, 0)
    replica = ReplicaState(net, [optimizer], {"lr": torch.optim.lr_scheduler.StepLR(optimizer, 3)})
    replica.adopt(travelled(replica.collect(PROGRESS, randomness.capture())))


def test_everything_in_state_travels() -> None:
    def parts() -> tuple[ReplicaState, Any, Any]:
        net = model()
        optimizer = torch.optim.Adam(net.parameters(), lr=1.0)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        chain = torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 2),
                torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
            ],
            milestones=[2],
        )
        return ReplicaState(net, [optimizer], {"plateau": plateau, "chain": chain}), plateau, chain

    one, plateau, chain = parts()
    one_step(one.model, one.optimizers[0], 0)
    for loss in (1.0, 2.0, 3.0):
        plateau.step(loss)
        chain.step()
    other, other_plateau, other_chain = parts()
    other.adopt(travelled(one.collect(PROGRESS, randomness.capture())))
    for p, c in ((plateau, chain), (other_plateau, other_chain)):
        p.step(4.0)
        c.step()
    assert other_plateau.state_dict() == plateau.state_dict()
    assert other_chain.get_last_lr() == chain.get_last_lr()
    assert other.optimizers[0].param_groups[0]["lr"] == one.optimizers[0].param_groups[0]["lr"]


def _state(net: nn.Module, optimizers: int = 1, groups: int = 1, **extra: Any) -> ReplicaState:
    parameters = list(net.parameters())
    share = len(parameters) // groups
    made = [
        torch.optim.SGD([{"params": parameters[i * share : (i + 1) * share]} for i in range(groups)], lr=0.1)
        for _ in range(optimizers)
    ]
    return ReplicaState(net, made, extra)


class _Extra:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("nobody asked for this")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (_state(nn.Linear(3, 5)), "model.weight: (4, 3) in the state, (5, 3) here"),
        (_state(nn.Linear(3, 4, bias=False)), "model.bias: only the state has it"),
        (_state(nn.Sequential(nn.Linear(3, 4))), "model.0.bias: only this model has it"),
        (_state(nn.Linear(3, 4), optimizers=2), "optimizer: the state has 1, this job 2"),
        (_state(nn.Linear(3, 4), groups=2), "optimizer: 1 parameter groups in the state, 2 here"),
        (_state(nn.Linear(3, 4), average=_Extra()), "state=: the state has [], this job ['average']"),
    ],
)
def test_the_state_of_another_job_is_refused_and_nothing_changes(other: ReplicaState, said: str) -> None:
    state = _state(nn.Linear(3, 4)).collect(PROGRESS, randomness.capture())
    before = [p.detach().clone() for p in other.model.parameters()]
    with pytest.raises(StateError) as refused:
        other.adopt(state)
    assert str(refused.value) == said
    assert all(map(torch.equal, other.model.parameters(), before))


def test_homes_are_filled_in_place() -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    one_step(net, optimizer, 0)
    replica = ReplicaState(net, [optimizer], {})
    homes = replica.homes()
    assert homes["model.0.weight"].data_ptr() == net[0].weight.data_ptr()  # type: ignore[index]  # a Sequential's first is a layer
    moment = next(iter(optimizer.state.values()))["exp_avg"]
    assert moment.data_ptr() in {t.data_ptr() for t in homes.values()}
    assert all(name.startswith(("model.", "optimizer.")) for name in homes)


def test_a_state_dict_of_torch_can_be_packed() -> None:
    """What torch itself would pickle goes through without."""
    net = model()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    assert same(dict(unpack(pack(net.state_dict()))), dict(net.state_dict()))
