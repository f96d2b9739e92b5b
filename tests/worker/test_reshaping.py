"""Checkpoints that replicas of one shape have written, read by those of another: each worker has its part again.

Models are split by torch's own functions over a process group that is none: a rank at a time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded import Model, split
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from worker.checkpoints import EPOCH, MARKS, MODEL, Bench
from worker.test_bad_checkpoints import DAMAGES
from worker.test_parts import Split, folder_of

from unicorn_mgr.messages import Attached
from unicorn_mgr.model import NO_STATE, Holdings, Lineage, Mark
from unicorn_mgr.seal import find
from unicorn_mgr.worker import restoring
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.exchange import Broken
from unicorn_mgr.worker.folder import Extent, load_tensor
from unicorn_mgr.worker.loop import Origin
from unicorn_mgr.worker.memory import Files, Memory
from unicorn_mgr.worker.mistake import MistakeError
from unicorn_mgr.worker.sharding import as_part_of
from unicorn_mgr.worker.siblings import place_of
from unicorn_mgr.worker.snapshot import Buffer, Draft
from unicorn_mgr.worker.state import Progress

pytestmark = MARKS

FOUR = {"shard": 4}
SHAPES: list[dict[str, int]] = [
    {},
    {"shard": 2},
    {"shard": 4},
    {"shard": 3},
    {"tensor": 2},
    {"shard": 2, "tensor": 2},
    {"pipeline": 2},
    {"pipeline": 3, "shard": 2},
]
"""Of 14 x 10, 10 x 14, 7 x 10 and smaller tensors, and 3 blocks: not all are cut evenly."""

UNNAMED: list[dict[str, int]] = [
    {"pipeline": 2},
    {"shard": 2, "pipeline": 2},
    {"shard": 3, "pipeline": 2},
]


class Stub:
    """As much of a job as the script wants for splitting its model."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh

    def replica_mesh(self, *names: str) -> DeviceMesh:
        return self._mesh[names] if self._mesh.ndim > len(names) else self._mesh


@contextlib.contextmanager
def rank(position: int, size: int) -> Iterator[None]:
    _clear_sharding_prop_cache()  # with what an operation gives it remembers on which rank that was
    dist.init_process_group("fake", store=FakeStore(), rank=position, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def keep(model: Model, stage: int, stages: int) -> None:
    """Only what belongs to this stage of a pipeline; the last layer belongs to the last one."""
    for i, _ in enumerate(model.blocks):
        if i * stages // len(model.blocks) != stage:
            model.blocks[i] = nn.Identity()
    if stage < stages - 1:
        del model.out


def models(axes: dict[str, int]) -> list[nn.Module]:
    """As each worker of a replica of this shape has it."""
    size = place_of(axes, 0).size
    found: list[nn.Module] = []
    for position in range(size):
        with rank(position, size):
            model = Model()
            place = place_of(axes, position)
            keep(model, place.stage, place.stages)
            if axes:
                mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
                split(model, Stub(mesh), list(axes))  # type: ignore[arg-type]  # as much of a job as it asks
            found.append(model)
    return found


def part(name: str, like: torch.Tensor, step: int) -> torch.Tensor:
    """What a worker has of a tensor in which each element is another number, as torch says."""
    whole = torch.arange(float(like.numel())).view(like.shape) + 1000 * step + len(name) / 100
    if not isinstance(like, DTensor):
        return whole
    shape, at = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    return whole[tuple(slice(a, a + n) for a, n in zip(at, shape, strict=True))]


def local(tensor: torch.Tensor) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Shaped(Split):
    """A replica of a shape, of which every number is known."""

    def __init__(self, url: str, axes: dict[str, int], **more: Any) -> None:
        super().__init__(url, axes, models=models(axes), **more)

    def fill(self, position: int, step: int) -> None:
        bench = self.benches[position]
        with torch.no_grad():
            for name, p in bench.model.named_parameters():
                local(p).copy_(part(name, p, step))
                # Not by an operation on p, whose mesh would be that of another rank: see above.
                moments = {key: as_part_of(p, part(name + key, p, step)) for key in ("exp_avg", "exp_avg_sq")}
                bench.optimizer.state[p] = {"step": torch.tensor(float(step)), **moments}
        bench.optimizer.param_groups[0]["lr"] = step / 8

    def check(self, step: int) -> None:
        """Everything is as it would be if this replica itself had stored it."""
        for bench in self.benches:
            assert bench.optimizer.param_groups[0]["lr"] == step / 8
            for name, p in bench.model.named_parameters():
                assert torch.equal(local(p.detach()), part(name, p, step)), name
                state = bench.optimizer.state[p]
                assert state["step"] == torch.tensor(float(step))
                for key in ("exp_avg", "exp_avg_sq"):
                    assert isinstance(state[key], DTensor) == isinstance(p, DTensor)
                    assert torch.equal(local(state[key]), part(name + key, p, step)), (name, key)


def name_of(axes: dict[str, int]) -> str:
    return ",".join(f"{axis}={size}" for axis, size in axes.items()) or "whole"


@pytest.mark.parametrize("there", SHAPES, ids=name_of)
def test_each_has_its_part_of_what_another_shape_has_stored(tmp_path: Path, there: dict[str, int]) -> None:
    Shaped(str(tmp_path), there).store(3)
    for here in SHAPES:
        fresh = Shaped(str(tmp_path), here)
        assert fresh.find() == [(Progress(3, -1, 0), 0)] * len(fresh.benches)
        fresh.check(3)


class Unnamed(Split):
    """A pipeline of two that are each a model for themselves, with the same names; every number is its stage."""

    def __init__(self, url: str, axes: dict[str, int]) -> None:
        places = [place_of(axes, position) for position in range(place_of(axes, 0).size)]
        self.stages = [place.stage for place in places]
        found = []
        for place in places:
            with rank(place.position, place.size):
                model = nn.Linear(6, 4)
                if "shard" in axes:
                    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
                    fully_shard(model, mesh=mesh["shard"])
                found.append(model)
        super().__init__(url, axes, models=found)

    def fill(self, position: int, step: int) -> None:
        with torch.no_grad():
            for p in self.benches[position].model.parameters():
                local(p).fill_(self.stages[position])


@pytest.mark.parametrize("there", UNNAMED, ids=name_of)
@pytest.mark.parametrize("here", UNNAMED, ids=name_of)
def test_stages_with_the_same_names_stay_apart(tmp_path: Path, there: dict[str, int], here: dict[str, int]) -> None:
    Unnamed(str(tmp_path), there).store(3)
    fresh = Unnamed(str(tmp_path), here)
    fresh.find()
    for stage, bench in zip(fresh.stages, fresh.benches, strict=True):
        assert all(bool((local(p) == stage).all()) for p in bench.model.parameters())


def test_from_any_place(url: str) -> None:
    Shaped(url, {"shard": 4}).store(3)
    fresh = Shaped(url, {"tensor": 2})
    fresh.find()
    fresh.check(3)
    fresh.store(4)
    again = Shaped(url, {"shard": 3})
    again.find()
    again.check(4)


def at_a_tensor(folder: Path, harm: Callable[[bytearray, int], None]) -> None:
    """Harm comes to where a part has its row of a weight."""
    (file,) = folder.glob("*.distcp")
    data = bytearray(file.read_bytes())
    row = part("out.weight", torch.empty(7, 10), 3)[6]
    at = data.index(row.numpy().tobytes())
    harm(data, at)
    file.write_bytes(data)


def cut(data: bytearray, at: int) -> None:
    del data[at + 3 :]


def flip(data: bytearray, at: int) -> None:
    data[at + 5] ^= 1


HARMS: dict[str, Callable[[Path], object]] = {
    "torn": lambda folder: at_a_tensor(folder, cut),
    "rotten": lambda folder: at_a_tensor(folder, flip),
    "missing": lambda folder: next(folder.glob("*.distcp")).unlink(),
    "without its index": DAMAGES["without its index"],
    "with a rotten index": DAMAGES["with a rotten index"],
    "foreign": lambda folder: shutil.copy(next(folder.with_name("part-2").glob("*.distcp")), folder),
}


@pytest.mark.parametrize("harm", HARMS)
def test_with_a_damaged_part_all_take_an_older_one(
    tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those that need nothing of it."""
    written = Shaped(str(tmp_path), {"shard": 4})
    written.store(2)
    written.store(3)
    HARMS[harm](folder_of(tmp_path, 3) / "part-3")
    fresh = Shaped(str(tmp_path), {"shard": 2})
    assert fresh.find() == [(Progress(2, -1, 0), 0)] * 2
    fresh.check(2)
    said = capsys.readouterr().err.splitlines()
    assert said
    assert all("checkpoint step-0000000003.0-1-1.json is skipped: part-3: " in line for line in said)


def test_only_what_is_needed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each tensor the parts that have something of it for a worker, of what all have one."""
    written = Shaped(str(tmp_path), {"shard": 4})
    written.store(3)
    fresh = Shaped(str(tmp_path), {"shard": 2})
    read: Counter[str] = Counter()

    def noted(data: bytes, extent: Extent) -> torch.Tensor:
        read[extent.name] += 1
        return load_tensor(data, extent)

    monkeypatch.setattr(restoring, "load_tensor", noted)
    fresh.find()
    fresh.check(3)

    def rows(bench: Bench, name: str) -> set[float]:
        parameter = dict(bench.model.named_parameters())[name]
        return set(part(name, parameter, 3).flatten().tolist())

    for name, _ in fresh.benches[0].model.named_parameters():
        meet = sum(bool(rows(new, name) & rows(old, name)) for new in fresh.benches for old in written.benches)
        state = f"optimizer.0.state.{name}"
        moments = {f"{state}.exp_avg": meet, f"{state}.exp_avg_sq": meet, f"{state}.step": 2}
        for tensor, times in {f"model.{name}": meet, **moments}.items():
            assert read.pop(tensor) == times, tensor
    assert set(read.values()) == {2}
    assert all(name.startswith("random.") for name in read)


def test_a_part_of_another_step_is_never_taken(tmp_path: Path) -> None:
    written = Shaped(str(tmp_path), {"shard": 2})
    for step in (1, 2, 3):
        written.store(step)
    shutil.copytree(folder_of(tmp_path, 2) / "part-1", folder_of(tmp_path, 3) / "part-1", dirs_exist_ok=True)
    fresh = Shaped(str(tmp_path), {})
    assert fresh.find() == [(Progress(2, -1, 0), 0)]
    fresh.check(2)


def test_parts_that_do_not_make_up_the_whole_are_one_clear_line(tmp_path: Path) -> None:
    """As of a program that leaves its last layer to another one."""
    written = Shaped(str(tmp_path), {"shard": 2})
    del written.benches[0].replica.state.parameters["out.weight"]
    written.store(1)
    with pytest.raises(MistakeError) as refused:
        Shaped(str(tmp_path), {}).find()
    assert str(refused.value) == (
        f"checkpoint: {tmp_path}: step-0000000001.0-1-1 is of another job (model.out.weight: its parts do not make up "
        "the whole); choose another --checkpoint"
    )


@pytest.mark.parametrize("here", [{"shard": 2}, {}], ids=name_of)
def test_a_model_of_another_size_is_one_clear_line(tmp_path: Path, here: dict[str, int]) -> None:
    written = Shaped(str(tmp_path), {})
    written.benches[0].replica.state.parameters["out.weight"] = nn.Parameter(torch.ones(7, 14))
    written.store(1)
    with pytest.raises(MistakeError, match=r"model\.out\.weight: \(7, 14\) in the state, \(7, 10\) here"):
        Shaped(str(tmp_path), here).find()


# -- what they have left in memory ----------------------------------------------------------


@pytest.fixture
def files() -> Iterator[list[int]]:
    made = [os.memfd_create(f"slot {slot}") for slot in range(4)]
    yield made
    for file in made:
        os.close(file)


def leave_behind(
    files: list[int],
    written: Shaped,
    step: int,
    committed: int = 0,
    axes: dict[str, int] = FOUR,
    piecewise: bool = True,
) -> Mark:
    """Each worker's snapshot of a step, which one of them knows to be committed."""
    mark = Mark(step, Lineage(0, EPOCH))
    for position, (file, bench) in enumerate(zip(files, written.benches, strict=True)):
        written.fill(position, step)
        of = {"job": "job", "position": position, "axes": axes, "model": list(MODEL.values())}
        buffer, draft = Buffer(file), Draft(mark, of, bench.packed(step), piecewise)
        buffer.make_room(draft)
        buffer.write(draft, lambda: None)
        buffer.seal()
        if position == committed:
            buffer.commit()
    return mark


def memories(fresh: Shaped, files: list[int]) -> list[Memory]:
    found = []
    for bench in fresh.benches:
        made = Memory(Attached(job_id="job"), Files(found=tuple(files)), bench.checkpointer._siblings, Drills())
        made.set_fingerprint(MODEL)
        found.append(made)
    return found


@pytest.mark.parametrize("here", SHAPES, ids=name_of)
def test_what_another_shape_has_left_in_memory_is_read_as_well(
    tmp_path: Path, files: list[int], here: dict[str, int]
) -> None:
    mark = leave_behind(files, Shaped(str(tmp_path), FOUR), 3)
    fresh = Shaped(str(tmp_path), here)
    kept = memories(fresh, files)
    offered = [memory.offer(Holdings()) for memory in kept]
    if here == FOUR:
        assert [of.snapshots for of in offered] == [(mark,)] * 4
        assert [of.committed for of in offered] == [(mark,), (), (), ()]
    else:
        assert offered == [Holdings(NO_STATE, snapshots=(mark,), committed=(mark,))] * len(kept)
    for memory, bench in zip(kept, fresh.benches, strict=True):
        assert memory.load(bench.replica, mark) == Origin(Progress(3, -1, 0), 0, "memory")
    fresh.check(3)


def test_what_can_be_checked_only_as_a_whole_is_read_as_a_whole(tmp_path: Path, files: list[int]) -> None:
    mark = leave_behind(files, Shaped(str(tmp_path), FOUR), 3, piecewise=False)
    fresh = Shaped(str(tmp_path), {})
    (memory,) = memories(fresh, files)
    assert memory.offer(Holdings()).snapshots == (mark,)
    memory.load(fresh.benches[0].replica, mark)
    fresh.check(3)


@pytest.mark.parametrize("lost", range(4))
def test_without_a_part_there_is_none(tmp_path: Path, files: list[int], lost: int) -> None:
    leave_behind(files, Shaped(str(tmp_path), FOUR), 3)
    os.ftruncate(files[lost], 0)
    (memory,) = memories(Shaped(str(tmp_path), {}), files)
    assert memory.offer(Holdings()).snapshots == ()


def test_parts_of_different_steps_are_none(tmp_path: Path, files: list[int]) -> None:
    written = Shaped(str(tmp_path), FOUR)
    leave_behind(files, written, 3)
    other = [os.dup(files[0]), *(os.memfd_create("elsewhere") for _ in range(3))]
    leave_behind(other, written, 4)
    for file in other:
        os.close(file)
    (memory,) = memories(Shaped(str(tmp_path), {}), files)
    assert memory.offer(Holdings()).snapshots == ()


def test_a_damaged_part_is_offered_once(tmp_path: Path, files: list[int]) -> None:
    mark = leave_behind(files, Shaped(str(tmp_path), FOUR), 3)
    damaged = find(files[2])
    assert damaged is not None
    (byte,) = os.pread(files[2], 1, damaged.body_at)
    os.pwrite(files[2], bytes([byte ^ 1]), damaged.body_at)
    fresh = Shaped(str(tmp_path), {})
    (memory,) = memories(fresh, files)
    assert memory.offer(Holdings()).snapshots == (mark,)
    with pytest.raises(Broken, match="its body is not as it was written"):
        memory.load(fresh.benches[0].replica, mark)
    assert memory.offer(Holdings()).snapshots == ()
