"""Checkpoints through bad storage, and ones that are damaged or of another job."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from worker.checkpoints import FLAKY, MARKS, MODEL, Bench, weight
from worker.flaky import FlakyFileSystem

from unicorn_mgr.messages import CheckpointFailed, CheckpointPublished
from unicorn_mgr.worker import restoring
from unicorn_mgr.worker.mistake import MistakeError
from unicorn_mgr.worker.randomness import capture, portable
from unicorn_mgr.worker.state import Progress

pytestmark = MARKS

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


def test_storage_that_fails_does_not_show_in_the_scripts_generators() -> None:
    bench = Bench(FLAKY)
    before = portable(capture())
    FlakyFileSystem.failures["put_file"] = failing(2, FULL[0])
    bench.store(1)
    FlakyFileSystem.failures["cat_file"] = failing(2, FULL[0])
    bench.find()
    assert len(bench.of(CheckpointFailed)) == 2
    assert portable(capture())["python"] == before["python"]


def test_a_failed_attempt_leaves_nothing_behind() -> None:
    bench = Bench(FLAKY)
    FlakyFileSystem.failures["put_file"] = itertools.chain([None], failing(1, FULL[0]))  # type: ignore[list-item]  # None lets it pass
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
    monkeypatch.setattr(restoring, "RESTORE_SECONDS_MAX", 0.02)
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


DAMAGES: dict[str, Callable[[Path], object]] = {
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
