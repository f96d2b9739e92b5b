"""Checkpoints written beside training: only what can't be lost, through bad storage, readable by torch alone."""

from __future__ import annotations

import itertools
import json
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter  # type: ignore[attr-defined]
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from worker.flaky import FlakyFileSystem
from worker.recipes import difference
from worker.test_state import DTYPES, same

from unicorn_mgr.messages import (
    CheckpointComplete,
    CheckpointFailed,
    CheckpointPublished,
    CheckpointWritten,
    Fact,
)
from unicorn_mgr.model import Epoch, Lineage
from unicorn_mgr.worker import checkpoint as module
from unicorn_mgr.worker import randomness
from unicorn_mgr.worker.attach import attach
from unicorn_mgr.worker.checkpoint import Checkpointer, CheckpointSettings, load_folder
from unicorn_mgr.worker.checks import SettingError
from unicorn_mgr.worker.drills import Drills
from unicorn_mgr.worker.mistake import MistakeError
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.state import Packed, Progress, pack

# torch says so at every save and load; the product's own filter is undone by pytest for each test.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

EPOCH = Epoch(1, 1)
FLAKY = "flaky://bucket/run"
MODEL = {"parameters": "p", "buffers": "b"}
PATIENCE_SECONDS = 20.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(module, "RETRY_SECONDS_MAX", 0.001)
    FlakyFileSystem.reset()
    yield
    FlakyFileSystem.reset()


class Places(Drills):
    """Says when the writing thread has come to a place."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()
        self.reached: list[str] = []

    def reach(self, place: str, step: int) -> None:
        with self.changed:
            self.reached.append(place)
            self.changed.notify_all()

    def wait(self, place: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: place in self.reached, PATIENCE_SECONDS)


class Bench:
    """A checkpointer with a model, and what it tells the coordinator."""

    def __init__(
        self,
        url: str,
        alone: bool = True,
        every: int = 1,
        keep: int = 3,
        job_id: str = "job",
        model: nn.Module | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.model = model or nn.Linear(2, 3)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.replica = Replica(self.model, [self.optimizer], {})
        self.told: list[Fact] = []
        self.places = Places()
        self.checkpointer = Checkpointer(
            CheckpointSettings(url, every, keep, job_id), self.told.append, self.places, alone=alone
        )
        self.checkpointer.set_fingerprint(MODEL)

    def packed(self, step: int) -> Packed:
        return self.replica.state.collect(Progress(step, -1, 0), randomness.capture())

    def take(self, step: int, epoch: Epoch = EPOCH, generation: int = 0) -> None:
        self.checkpointer.take(self.packed(step), step, epoch, generation)

    def store(self, step: int, epoch: Epoch = EPOCH, generation: int = 0) -> None:
        """Take one, commit it, and wait until it is published."""
        with torch.no_grad():
            for p in self.model.parameters():
                p.fill_(step)
        self.take(step, epoch, generation)
        self.checkpointer.committed(step)
        assert self.checkpointer.wait_until_idle()

    def find(self) -> tuple[Progress | None, int]:
        return self.checkpointer.find(self.replica)

    def of(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in self.told if isinstance(fact, kind)]


def weight(bench: Bench) -> float:
    """All of them are the step they were stored at."""
    (value,) = {float(v) for p in bench.model.parameters() for v in p.detach().flatten()}
    return value


@pytest.fixture(params=["directory", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "run") if request.param == "directory" else FLAKY


# -- storing and finding --------------------------------------------------------------------


def test_what_was_stored_is_found(url: str) -> None:
    bench = Bench(url)
    bench.store(4)
    fresh = Bench(url)
    assert fresh.find() == (Progress(4, -1, 0), 0)
    assert weight(fresh) == 4
    assert fresh.checkpointer.newest_taken == 4


def test_an_empty_place_has_nothing(url: str) -> None:
    assert Bench(url).find() == (None, 0)


def test_nothing_is_published_before_the_step_is_committed(url: str) -> None:
    bench = Bench(url)
    bench.take(4)
    bench.places.wait("checkpoint")
    bench.checkpointer.committed(3)
    assert bench.told == []
    assert Bench(url).find() == (None, 0)
    bench.checkpointer.committed(4)
    assert bench.checkpointer.wait_until_idle()
    assert Bench(url).find() == (Progress(4, -1, 0), 0)


def test_what_is_stored_is_the_state_at_the_moment_it_was_taken(url: str) -> None:
    bench = Bench(url)
    before = [p.detach().clone() for p in bench.model.parameters()]
    bench.take(4)
    with torch.no_grad():
        for p in bench.model.parameters():
            p.fill_(99)
    bench.checkpointer.committed(4)
    assert bench.checkpointer.wait_until_idle()
    fresh = Bench(url)
    fresh.find()
    assert all(map(torch.equal, fresh.model.parameters(), before))


def test_in_company_the_coordinator_gives_the_word(url: str) -> None:
    bench = Bench(url, alone=False)
    bench.take(4)
    bench.checkpointer.committed(4)
    bench.places.wait("checkpoint")
    bench.checkpointer.completed(CheckpointComplete(3, Lineage(0, EPOCH)))
    assert Bench(url).find() == (None, 0)
    bench.checkpointer.completed(CheckpointComplete(4, Lineage(0, EPOCH)))
    assert bench.checkpointer.wait_until_idle()
    assert Bench(url).find() == (Progress(4, -1, 0), 0)
    (written,) = bench.of(CheckpointWritten)
    assert (written.step, written.lineage) == (4, Lineage(0, EPOCH))
    assert written.size_bytes > 0
    assert bench.of(CheckpointPublished) == [CheckpointPublished(4, url)]


def test_a_newer_lineage_takes_the_place_over(url: str) -> None:
    bench = Bench(url, alone=False)
    bench.take(4)
    bench.checkpointer.completed(CheckpointComplete(2, Lineage(0, Epoch(1, 2))))
    assert bench.checkpointer.wait_until_idle()
    (failed,) = bench.of(CheckpointFailed)
    assert failed.superseded
    assert Bench(url).find() == (None, 0)
    bench.take(5)
    bench.checkpointer.completed(CheckpointComplete(5, Lineage(0, EPOCH)))
    assert bench.checkpointer.wait_until_idle()
    assert Bench(url).find() == (Progress(5, -1, 0), 0)


def test_an_older_lineage_publishes_nothing_over_a_newer(url: str) -> None:
    Bench(url).store(2, Epoch(2, 1))
    bench = Bench(url)
    bench.store(9, Epoch(1, 7))
    (failed,) = bench.of(CheckpointFailed)
    assert failed.superseded
    assert Bench(url).find() == (Progress(2, -1, 0), 0)


def test_the_newest_are_kept(url: str) -> None:
    bench = Bench(url, keep=2)
    for step in range(5):
        bench.store(step)
    kept = [m.step for _, m in bench.checkpointer._storage.manifests() if not isinstance(m, Exception)]
    assert kept == [4, 3]


def test_another_job_in_the_same_place_is_the_next_generation(url: str) -> None:
    Bench(url, job_id="first").store(4)
    second = Bench(url, job_id="second")
    assert second.find() == (Progress(4, -1, 1), 1)
    second.store(5, Epoch(1, 1), generation=1)
    assert Bench(url, job_id="second").find() == (Progress(5, -1, 1), 1)
    assert Bench(url, job_id="third").find() == (Progress(5, -1, 2), 2)


@pytest.mark.parametrize(("every", "due"), [(0, []), (1, [0, 1, 2, 3, 4, 5]), (2, [1, 3, 5]), (4, [3])])
def test_one_is_due_every_so_many_steps(tmp_path: Path, every: int, due: list[int]) -> None:
    bench = Bench(str(tmp_path), every=every)
    found = []
    for applied in range(6):
        if bench.checkpointer.is_due(applied):
            found.append(applied)
            bench.store(applied)
    assert found == due


def test_none_is_due_while_one_is_under_way(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path))
    bench.take(1)
    assert not bench.checkpointer.is_due(2)
    bench.checkpointer.committed(1)
    assert bench.checkpointer.wait_until_idle()
    assert bench.checkpointer.is_due(2)


# -- what torch reads -----------------------------------------------------------------------


def folder_of(url: str) -> Path:
    (folder,) = (p for p in Path(url).iterdir() if p.is_dir())
    return folder


def test_torch_loads_it_without_the_library(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path / "run"))
    bench.model(torch.ones(1, 2)).sum().backward()
    bench.optimizer.step()
    bench.store(4)
    fresh = nn.Linear(2, 3)
    wanted = {"model": fresh.state_dict()}
    load(wanted, checkpoint_id=str(folder_of(str(tmp_path / "run"))), no_dist=True)
    fresh.load_state_dict(wanted["model"])
    assert all(map(torch.equal, fresh.parameters(), bench.model.parameters()))
    about = FileSystemReader(folder_of(str(tmp_path / "run"))).read_metadata().state_dict_metadata
    assert {"model.weight", "optimizer.0.state.0.exp_avg", "optimizer.0.state.0.step"} <= set(about)


class Trap:
    """Whoever unpickles it is caught."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (sys.exit, ("unpickled",))


@pytest.mark.parametrize("hidden", ["in torch's index", "in place of a tensor"])
def test_nothing_from_storage_is_unpickled(tmp_path: Path, hidden: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Storage may be anybody's: a checkpoint that is whole by its checksums runs no code."""
    bench = Bench(str(tmp_path))
    bench.store(1)
    storage = bench.checkpointer._storage
    ((_, manifest),) = storage.manifests()
    assert not isinstance(manifest, Exception)
    folder = folder_of(str(tmp_path))
    if hidden == "in torch's index":
        (folder / ".metadata").write_bytes(pickle.dumps(Trap()))
    else:
        torch.save(Trap(), folder / "__0_0.distcp")
        index = json.loads((folder / "unicorn.json").read_text())
        index["tensors"] = [[name, file, 0, 1 << 20] for name, file, *_ in index["tensors"]]
        (folder / "unicorn.json").write_text(json.dumps(index))
    files = storage.upload(manifest.name, folder)
    storage.publish(type(manifest)(1, manifest.lineage, "job", MODEL, files))
    if hidden == "in torch's index":
        assert Bench(str(tmp_path)).find() == (Progress(1, -1, 0), 0)
    else:
        assert Bench(str(tmp_path)).find() == (None, 0)
        assert "is skipped: it can't be loaded" in capsys.readouterr().err


def test_every_kind_of_state_is_stored(url: str) -> None:
    """Straight through the writer and the reader: all dtypes, no dimension, nothing in it, names that clash."""
    tree = {
        "all": {str(d): torch.zeros(3, dtype=torch.uint8).repeat(d.itemsize).view(d) for d in DTYPES},
        "odd": [torch.tensor(1.5), torch.zeros(0), torch.zeros(2, 0, 3), torch.arange(6.0).reshape(2, 3).t()],
        "plain": {"text": "é", 3: None, "pair": (1, 2.5), "nan": float("nan")},
        "clash": {"a.b": torch.ones(1), "a": {"b": torch.ones(2)}},
    }
    packed = pack(tree)
    bench = Bench(url)
    bench.checkpointer.take(packed, 1, EPOCH, 0)
    bench.checkpointer.committed(1)
    assert bench.checkpointer.wait_until_idle()
    storage = bench.checkpointer._storage
    ((_, manifest),) = storage.manifests()
    assert not isinstance(manifest, Exception)
    with storage.checked(manifest) as folder:
        found = load_folder(folder)
    assert (found.skeleton, found.names) == (packed.skeleton, packed.names)
    assert all(same(a, b) for a, b in zip(found.tensors, packed.tensors, strict=True))


# -- bad storage ----------------------------------------------------------------------------


def failing(count: int, error: Callable[[], Exception]) -> Iterator[Exception]:
    return (error() for _ in range(count))


FULL = [
    lambda: OSError(28, "No space left on device"),
    lambda: TimeoutError("no answer"),
    lambda: RuntimeError("503 Slow Down\nrequest 17"),
]


@pytest.mark.parametrize("error", FULL)
@pytest.mark.parametrize("call", ["put_file", "pipe_file", "cat_file", "ls"])
def test_storage_that_fails_for_a_while_is_tried_again(
    call: str, error: Callable[[], Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(FLAKY)
    bench.store(1)
    FlakyFileSystem.failures[call] = failing(3, error)
    bench.store(2)
    assert Bench(FLAKY).find() == (Progress(2, -1, 0), 0)
    failed = bench.of(CheckpointFailed)
    said = capsys.readouterr().err.splitlines()
    assert len(failed) == len(said) == 3
    assert all(f.step == 2 and not f.superseded and f.error == str(error()).splitlines()[-1] for f in failed)
    assert said[0].startswith(f"unicorn: checkpoint of step 2 in {FLAKY}: ")
    assert said[0].endswith("; trying again")
    assert len(bench.of(CheckpointPublished)) == 2


def test_a_failed_attempt_leaves_nothing_behind() -> None:
    bench = Bench(FLAKY)
    FlakyFileSystem.failures["put_file"] = itertools.chain([None], failing(1, FULL[0]))  # type: ignore[list-item]
    rm_calls = FlakyFileSystem.calls.count("rm")
    bench.store(1)
    assert FlakyFileSystem.calls.count("rm") > rm_calls
    assert Bench(FLAKY).find() == (Progress(1, -1, 0), 0)


def test_a_full_disk_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(str(tmp_path / "run"))
    failures = failing(2, FULL[0])
    write = FileSystemWriter.write_data

    def full(self: Any, *arguments: Any) -> Any:
        for failure in failures:
            raise failure
        return write(self, *arguments)

    monkeypatch.setattr(FileSystemWriter, "write_data", full)
    bench.store(1)
    assert len(bench.of(CheckpointFailed)) == 2
    assert "No space left on device" in bench.of(CheckpointFailed)[0].error
    assert Bench(str(tmp_path / "run")).find() == (Progress(1, -1, 0), 0)


def test_old_checkpoints_that_can_not_be_removed_hold_nothing_up(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(FLAKY, keep=1)
    bench.store(1)
    FlakyFileSystem.failures["rm"] = itertools.repeat(PermissionError("deleting is not allowed"))
    bench.store(2)
    assert len(bench.of(CheckpointPublished)) == 2
    assert bench.of(CheckpointFailed) == []
    assert f"unicorn: {FLAKY}: old checkpoints stay: deleting is not allowed" in capsys.readouterr().err


def test_after_a_checkpoint_that_could_not_be_made_the_next_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench = Bench(str(tmp_path))

    def broken(place: str, step: int) -> None:
        if (place, step) == ("checkpoint", 1):
            raise RuntimeError("planted")

    monkeypatch.setattr(bench.places, "reach", broken)
    bench.store(1)
    assert bench.of(CheckpointFailed) == [CheckpointFailed(1, "planted")]
    bench.store(2)
    assert Bench(str(tmp_path)).find() == (Progress(2, -1, 0), 0)


@pytest.mark.parametrize("error", FULL)
@pytest.mark.parametrize("call", ["ls", "cat_file", "get_file"])
def test_storage_that_can_not_be_read_for_a_while_is_read_again(
    call: str, error: Callable[[], Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2):
        Bench(FLAKY).store(step)
    FlakyFileSystem.failures[call] = failing(3, error)
    assert Bench(FLAKY).find() == (Progress(2, -1, 0), 0)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert said[0] == f"unicorn: {FLAKY} can't be read: {str(error()).splitlines()[-1]}; trying again"


def test_storage_that_stays_unreadable_ends_the_job_and_does_not_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    Bench(FLAKY).store(1)
    monkeypatch.setattr(module, "RESTORE_SECONDS_MAX", 0.02)
    FlakyFileSystem.failures["get_file"] = itertools.repeat(TimeoutError("no answer"))
    with pytest.raises(MistakeError) as refused:
        Bench(FLAKY).find()
    assert str(refused.value) == (
        f"checkpoint: {FLAKY}: it can't be read: no answer; mend it, or choose another --checkpoint"
    )


# -- bad checkpoints ------------------------------------------------------------------------


def damage(url: str, step: int, act: Callable[[Path], object]) -> None:
    (folder,) = (p for p in Path(url).glob(f"step-{step:010d}.*") if p.is_dir())
    act(folder)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "torn": lambda f: truncate(f / "__0_0.distcp"),
    "rotten": lambda f: flip(f / "__0_0.distcp"),
    "without its index": lambda f: (f / "unicorn.json").unlink(),
    "with a rotten index": lambda f: flip(f / "unicorn.json"),
    "with a torn manifest": lambda f: truncate(f.with_name(f"{f.name}.json")),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_next_older(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(str(tmp_path))
    for step in (1, 2, 3):
        bench.store(step)
    damage(str(tmp_path), 3, DAMAGES[name])
    damage(str(tmp_path), 2, DAMAGES[name])
    fresh = Bench(str(tmp_path))
    assert fresh.find() == (Progress(1, -1, 0), 0)
    assert weight(fresh) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all(line.startswith(f"unicorn: {tmp_path}: checkpoint step-000000000") for line in said)
    assert all("is skipped: " in line for line in said)


def test_with_nothing_but_damage_the_job_begins_anew(tmp_path: Path) -> None:
    Bench(str(tmp_path)).store(1)
    damage(str(tmp_path), 1, DAMAGES["torn"])
    assert Bench(str(tmp_path)).find() == (None, 0)


def test_what_another_program_wrote_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, by its checksums, and yet not ours."""
    bench = Bench(str(tmp_path))
    bench.store(1)
    storage = bench.checkpointer._storage
    ((_, manifest),) = storage.manifests()
    assert not isinstance(manifest, Exception)
    with storage.staging(manifest.name) as folder:
        save({"x": torch.ones(1)}, storage_writer=FileSystemWriter(folder), no_dist=True)
        files = storage.upload(manifest.name, folder)
    storage.publish(type(manifest)(1, manifest.lineage, "job", MODEL, files))
    assert Bench(str(tmp_path)).find() == (None, 0)
    assert "is skipped: it was not written by unicorn" in capsys.readouterr().err


def test_the_checkpoint_of_another_model_is_one_clear_line(url: str) -> None:
    Bench(url).store(1)
    other = Bench(url)
    other.checkpointer.set_fingerprint({"parameters": "q", "buffers": "b"})
    with pytest.raises(MistakeError) as refused:
        other.find()
    assert str(refused.value).startswith(
        f"checkpoint: {url}: step-0000000001.0-1-1 is of another model (parameters p, here q)"
    )
    assert "\n" not in str(refused.value)


def test_the_checkpoint_of_another_optimizer_is_one_clear_line(url: str) -> None:
    Bench(url).store(1)
    other = Bench(url)
    other.replica.state.optimizers.append(other.optimizer)
    before = [p.detach().clone() for p in other.model.parameters()]
    with pytest.raises(MistakeError) as refused:
        other.find()
    assert str(refused.value) == (
        f"checkpoint: {url}: step-0000000001.0-1-1 is of another job (optimizer: the state has 1, this job 2); "
        "choose another --checkpoint"
    )
    assert all(map(torch.equal, other.model.parameters(), before))


# -- through the whole loop -----------------------------------------------------------------


def train(url: str, steps: int, every: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with attach() as job:
        training = job.train(
            model, optimizer, 2, {"scheduler": scheduler}, checkpoint=url, checkpoint_every=every, checkpoint_keep=2
        )
        drawn = 0.0
        for step in training.steps(steps):
            for number in step.micro_batches():
                step.backward(model(torch.full((3, 2), number + 1.0, dtype=torch.float64)).square().mean())
            optimizer.step()
            scheduler.step()
            drawn = float(torch.rand(()))
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "drawn": drawn}


@pytest.mark.parametrize("every", [0, 2, 3])
def test_training_goes_on_where_it_ended_as_if_it_had_not(url: str, every: int) -> None:
    train(url, 5, every)
    assert difference(train(url, 9, every), train("", 9, 0)) == 0.0


def test_a_loop_that_is_stored_to_its_end_has_nothing_left_to_do(url: str) -> None:
    first = train(url, 4, 0)
    again = train(url, 4, 0)
    assert difference(again["model"], first["model"]) == 0.0


def test_a_place_that_nothing_reaches_is_refused_in_one_line() -> None:
    with pytest.raises(SettingError) as refused:
        train("nosuch://bucket/run", 4, 1)
    assert str(refused.value) == "train: checkpoint: nosuch://bucket/run: Protocol not known: nosuch"
