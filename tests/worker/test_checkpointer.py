"""Checkpoints written beside training: only what can't be lost, readable by torch alone."""

from __future__ import annotations

import json
import math
import pickle
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from worker.checkpoints import EPOCH, MARKS, MODEL, Bench, weight
from worker.recipes import difference
from worker.test_state import DTYPES, same

from unicorn_mgr.messages import CheckpointComplete, CheckpointFailed, CheckpointPublished, CheckpointWritten
from unicorn_mgr.model import Epoch, Lineage
from unicorn_mgr.phases import Limits
from unicorn_mgr.ring import SIZE_BYTES, RingWriter
from unicorn_mgr.worker.attach import _ToStorage, attach
from unicorn_mgr.worker.checks import SettingError
from unicorn_mgr.worker.folder import load_folder
from unicorn_mgr.worker.state import Progress, pack

pytestmark = MARKS

# -- storing and finding --------------------------------------------------------------------


def test_what_was_stored_is_found(url: str) -> None:
    bench = Bench(url)
    bench.store(4)
    fresh = Bench(url)
    assert fresh.find() == (Progress(4, -1, 0), 0)
    assert weight(fresh) == 4
    assert fresh.checkpointer.is_stored(4)
    assert not fresh.checkpointer.is_stored(5)


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


def test_a_job_that_was_told_to_stop_ends_there_and_the_next_one_goes_on(url: str) -> None:
    Bench(url, job_id="first", ends_after=4).store(4)
    assert Bench(url, job_id="first").find() == (Progress(4, 4, 0), 0)
    assert Bench(url, job_id="second").find() == (Progress(4, -1, 1), 1)


@pytest.mark.parametrize(("every", "due"), [(0, []), (1, [0, 1, 2, 3, 4, 5]), (2, [1, 3, 5]), (4, [3])])
def test_one_is_due_every_so_many_steps(tmp_path: Path, every: int, due: list[int]) -> None:
    bench = Bench(str(tmp_path), every=every)
    found = []
    for applied in range(6):
        if bench.checkpointer.is_due(applied):
            found.append(applied)
            bench.store(applied)
    assert found == due


def test_steps_that_are_done_again_are_stored_again(tmp_path: Path) -> None:
    """The checkpoint of step 8 is complete, as the coordinator knows and says again, and can't be read any more."""
    Bench(str(tmp_path)).store(4)
    bench = Bench(str(tmp_path), alone=False, every=4, newest=8)
    assert bench.find() == (Progress(4, -1, 0), 0)
    bench.checkpointer.completed(CheckpointComplete(8, Lineage(0, EPOCH)))
    assert [applied for applied in range(4, 9) if bench.checkpointer.is_due(applied)] == [8]


def test_a_job_that_begins_anew_stores_from_its_first_step(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), every=4, newest=8)
    assert bench.find() == (None, 0)
    assert not bench.checkpointer.is_stored(0)
    assert [applied for applied in range(5) if bench.checkpointer.is_due(applied)] == [3, 4]


def test_steps_that_others_do_again_are_stored_by_whoever_becomes_the_first_member(tmp_path: Path) -> None:
    """It has never looked into storage: its state came from another member."""
    due, ending = (Bench(str(tmp_path), every=4, newest=8).checkpointer for _ in range(2))
    assert [applied for applied in range(3, 9) if due.is_due(applied)] == [7, 8]
    assert not ending.is_stored(7)
    assert ending.is_due(7) is False
    assert not ending.is_stored(7)


def test_what_others_complete_is_counted_from_as_it_is_told(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), alone=False, every=4, newest=8)
    bench.checkpointer.completed(CheckpointComplete(12, Lineage(0, EPOCH)))
    assert [applied for applied in range(12, 18) if bench.checkpointer.is_due(applied)] == [16, 17]


def test_none_is_due_while_one_is_under_way(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path))
    bench.take(1)
    assert not bench.checkpointer.is_due(2)
    bench.checkpointer.committed(1)
    assert bench.checkpointer.wait_until_idle()
    assert bench.checkpointer.is_due(2)


def test_at_the_end_storing_takes_as_long_as_it_takes(tmp_path: Path) -> None:
    """Nobody takes the one that waits for it for one that hangs."""
    bench = Bench(str(tmp_path), alone=False)
    engine: Any = SimpleNamespace(
        ring=RingWriter(bytearray(SIZE_BYTES)),
        membership=SimpleNamespace(formation=SimpleNamespace(rank=0)),
        applied=4,
        newest_epoch=EPOCH,
        generation=0,
        packed=lambda: bench.packed(4),
    )
    ending = threading.Thread(target=_ToStorage(bench.checkpointer).at_end, args=(engine,))
    ending.start()
    bench.places.wait("checkpoint")
    assert Limits().of(engine.ring.phase, step_seconds=0.1, stopped=False) == math.inf
    bench.checkpointer.completed(CheckpointComplete(4, Lineage(0, EPOCH)))
    ending.join(20.0)
    assert bench.checkpointer.is_published(4)


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
    assert {"model.weight", "optimizer.0.state.weight.exp_avg", "optimizer.0.state.bias.step"} <= set(about)


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
