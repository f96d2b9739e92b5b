"""Checkpoints of a model that is split over several workers: all parts of one step, or none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from worker.checkpoints import EPOCH, MARKS, Bench, weight
from worker.test_bad_checkpoints import DAMAGES
from worker.together import Meeting, Sibling

from unicorn_mgr.messages import CheckpointComplete, CheckpointFailed, CheckpointPublished, CheckpointWritten
from unicorn_mgr.model import Epoch, Lineage
from unicorn_mgr.worker.siblings import place_of
from unicorn_mgr.worker.state import Progress
from unicorn_mgr.worker.storage import Manifest

pytestmark = MARKS

SHARD = {"shard": 2}


class Split:
    """One replica: a bench for each of its workers, and the coordinator's word."""

    def __init__(
        self,
        url: str,
        axes: dict[str, int] = SHARD,
        job_id: str = "job",
        keep: int = 3,
        models: Sequence[nn.Module] | None = None,
    ) -> None:
        size = place_of(axes, 0).size
        self.url = url
        self._meeting = Meeting(size)
        self.benches = [
            Bench(
                url,
                alone=False,
                keep=keep,
                job_id=job_id,
                model=models[i] if models else None,
                siblings=Sibling(self._meeting, place_of(axes, i)),
            )
            for i in range(size)
        ]

    def take(self, step: int, epoch: Epoch = EPOCH, generation: int = 0) -> None:
        """Each fills its part with what tells it from all others, copies it, and has it written."""
        for position, bench in enumerate(self.benches):
            self.take_part(position, step, epoch, generation)
            bench.checkpointer.committed(step)

    def take_part(self, position: int, step: int, epoch: Epoch = EPOCH, generation: int = 0) -> None:
        bench = self.benches[position]
        bench.places.reached.clear()
        self.fill(position, step)
        bench.take(step, epoch, generation)
        bench.places.wait("checkpoint")

    def fill(self, position: int, step: int) -> None:
        with torch.no_grad():
            for p in self.benches[position].model.parameters():
                p.fill_(10 * step + position)

    def complete(self, step: int, epoch: Epoch = EPOCH, generation: int = 0) -> None:
        """The coordinator has heard of all parts."""
        for bench in self.benches:
            bench.checkpointer.completed(CheckpointComplete(step, Lineage(generation, epoch)))
        for bench in self.benches:
            assert bench.checkpointer.wait_until_idle()

    def store(self, step: int, epoch: Epoch = EPOCH, generation: int = 0) -> None:
        self.take(step, epoch, generation)
        self.complete(step, epoch, generation)

    def find(self) -> list[tuple[Progress | None, int]]:
        """All look together, as they come up together."""

        return self._meeting.at_once([bench.find for bench in self.benches])

    def steps(self) -> list[int]:
        """Of all that is published."""
        found = [m for _, m in self.benches[0].checkpointer._storage.manifests()]
        return [m.step for m in found if isinstance(m, Manifest)]


def finds(url: str, step: int, axes: dict[str, int] = SHARD) -> None:
    """A replica that comes up anew takes this step, each its own part."""
    fresh = Split(url, axes)
    assert fresh.find() == [(Progress(step, -1, 0), 0)] * len(fresh.benches)
    assert [weight(bench) for bench in fresh.benches] == [10 * step + i for i in range(len(fresh.benches))]


# -- whole or not at all --------------------------------------------------------------------


@pytest.mark.parametrize("axes", [SHARD, {"shard": 2, "tensor": 2}, {"tensor": 1}])
def test_each_finds_its_own_part_again(url: str, axes: dict[str, int]) -> None:
    split = Split(url, axes)
    split.store(4)
    finds(url, 4, axes)
    assert [len(bench.of(CheckpointWritten)) for bench in split.benches] == [1] * len(split.benches)
    assert [len(bench.of(CheckpointPublished)) for bench in split.benches] == [1] + [0] * (len(split.benches) - 1)
    assert all(bench.checkpointer.is_published(4) for bench in split.benches)


def test_parts_without_the_word_are_no_checkpoint(url: str) -> None:
    split = Split(url)
    split.store(1)
    split.take(4)
    assert split.steps() == [1]
    finds(url, 1)
    split.complete(4)
    assert split.steps() == [4, 1]
    finds(url, 4)


def test_what_another_life_left_half_written_is_removed_by_a_later_one(url: str) -> None:
    broken = Split(url)
    broken.take_part(1, 4)
    later = Split(url)
    later.store(5, Epoch(1, 2))
    finds(url, 5)
    storage = later.benches[0].checkpointer._storage
    left = {path.rpartition("/")[2] for path in storage._fs.ls(storage._root, detail=False)}
    assert left == {"step-0000000005.0-1-2", "step-0000000005.0-1-2.json"}


def test_a_newer_lineage_takes_the_place_over_from_all_parts(url: str) -> None:
    split = Split(url)
    split.take(4)
    split.complete(2, Epoch(1, 2))
    assert split.steps() == []
    assert [[f.superseded for f in bench.of(CheckpointFailed)] for bench in split.benches] == [[True], [True]]
    split.store(5, Epoch(1, 3))
    finds(url, 5)


def test_only_old_ones_are_removed_with_all_their_parts(tmp_path: Path) -> None:
    split = Split(str(tmp_path), keep=2)
    for step in range(4):
        split.store(step)
    assert split.steps() == [3, 2]
    assert len(list(tmp_path.iterdir())) == 4


def test_another_job_in_the_same_place_is_the_next_generation_for_all(url: str) -> None:
    Split(url, job_id="first").store(4)
    second = Split(url, job_id="second")
    assert second.find() == [(Progress(4, -1, 1), 1)] * 2
    second.store(5, generation=1)
    assert Split(url, job_id="third").find() == [(Progress(5, -1, 2), 2)] * 2


def test_torch_loads_each_part_without_the_library(tmp_path: Path) -> None:
    Split(str(tmp_path)).store(4)
    for position in range(2):
        fresh = nn.Linear(2, 3)
        wanted = {"model": fresh.state_dict()}
        load(wanted, checkpoint_id=str(tmp_path / "step-0000000004.0-1-1" / f"part-{position}"), no_dist=True)
        assert {float(v) for v in wanted["model"]["weight"].flatten()} == {40 + position}


# -- torn, stale, foreign -------------------------------------------------------------------


def folder_of(root: Path, step: int) -> Path:
    return root / f"step-{step:010d}.0-1-1"


HARMS: dict[str, Callable[[Path, int], object]] = {
    "torn": lambda root, part: DAMAGES["torn"](folder_of(root, 3) / f"part-{part}"),
    "rotten": lambda root, part: DAMAGES["rotten"](folder_of(root, 3) / f"part-{part}"),
    "without its index": lambda root, part: DAMAGES["without its index"](folder_of(root, 3) / f"part-{part}"),
    "missing": lambda root, part: shutil.rmtree(folder_of(root, 3) / f"part-{part}"),
    "stale": lambda root, part: copied(folder_of(root, 2) / f"part-{part}", folder_of(root, 3) / f"part-{part}"),
    "foreign": lambda root, part: copied(folder_of(root, 3) / f"part-{1 - part}", folder_of(root, 3) / f"part-{part}"),
}


def copied(there: Path, here: Path) -> None:
    shutil.copytree(there, here, dirs_exist_ok=True)


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("harm", HARMS)
def test_all_parts_are_of_the_next_older_step_if_one_is_damaged(
    tmp_path: Path, harm: str, position: int, capsys: pytest.CaptureFixture[str]
) -> None:
    split = Split(str(tmp_path))
    for step in (1, 2, 3):
        split.store(step)
    HARMS[harm](tmp_path, position)
    finds(str(tmp_path), 2)
    (said,) = capsys.readouterr().err.splitlines()
    assert f"checkpoint step-0000000003.0-1-1.json is skipped: part-{position}: " in said


def test_different_parts_of_different_steps_are_damaged(tmp_path: Path) -> None:
    split = Split(str(tmp_path))
    for step in (1, 2, 3):
        split.store(step)
    DAMAGES["torn"](folder_of(tmp_path, 3) / "part-0")
    DAMAGES["rotten"](folder_of(tmp_path, 2) / "part-1")
    finds(str(tmp_path), 1)
    DAMAGES["torn"](folder_of(tmp_path, 1) / "part-0")
    assert Split(str(tmp_path)).find() == [(None, 0)] * 2


@pytest.mark.parametrize("position", [0, 1])
def test_what_is_not_seen_from_everywhere_is_not_taken(url: str, position: int) -> None:
    """One of them has listed the place before the newest was published there."""
    split = Split(url)
    split.store(1)
    split.store(2)
    fresh = Split(url)
    storage = fresh.benches[position].checkpointer._storage
    late = [(name, m) for name, m in storage.manifests() if isinstance(m, Manifest) and m.step == 1]
    storage.manifests = lambda: iter(late)  # type: ignore[method-assign]  # a late look
    assert fresh.find() == [(Progress(1, -1, 0), 0)] * 2
    assert [weight(bench) for bench in fresh.benches] == [10, 11]


@pytest.mark.parametrize(
    "plant",
    [
        lambda root: shutil.copy(folder_of(root, 1) / "part-1.json", folder_of(root, 4) / "part-1.json"),
        lambda root: shutil.copy(folder_of(root, 4) / "part-0.json", folder_of(root, 4) / "part-1.json"),
        lambda root: DAMAGES["torn"](folder_of(root, 4) / "part-1"),
    ],
    ids=["stale", "foreign", "torn afterwards"],
)
def test_a_part_that_is_planted_before_the_word_is_never_chosen(
    tmp_path: Path, plant: Callable[[Path], object]
) -> None:
    split = Split(str(tmp_path))
    split.store(1)
    split.take(4)
    plant(tmp_path)
    split.complete(4)
    finds(str(tmp_path), 1)
    split.store(5)
    finds(str(tmp_path), 5)


def test_a_manifest_of_another_part_is_told_and_not_published(tmp_path: Path) -> None:
    split = Split(str(tmp_path))
    split.store(1)
    split.take(4)
    shutil.copy(folder_of(tmp_path, 1) / "part-1.json", folder_of(tmp_path, 4) / "part-1.json")
    split.complete(4)
    assert split.benches[0].of(CheckpointFailed) == [
        CheckpointFailed(4, "part-1 of step-0000000004.0-1-1 is of another checkpoint")
    ]
    assert split.steps() == [1]
    assert not split.benches[0].checkpointer.is_published(4)
