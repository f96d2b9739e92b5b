"""Where checkpoints are kept: whole or not at all, newest lineage first, only old ones removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from worker.flaky import FlakyFileSystem

from unicorn_mgr.model import Epoch, Lineage
from unicorn_mgr.worker.storage import Manifest, Storage, StorageError

CONTENT = {"__0_0.distcp": b"0123456789" * 300_000, ".metadata": b"about"}


@pytest.fixture(params=["directory", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    FlakyFileSystem.reset()
    yield Storage(str(tmp_path / "deep" / "run") if request.param == "directory" else "flaky://bucket/run")
    FlakyFileSystem.reset()


def lineage(generation: int = 0, term: int = 1, number: int = 1) -> Lineage:
    return Lineage(generation, Epoch(term, number))


def stage(storage: Storage, step: int, of: Lineage, content: dict[str, bytes] = CONTENT) -> Manifest:
    """A checkpoint's files, not published."""
    name = Manifest(step, of, "job", {}, {}).name
    with storage.staging(name) as folder:
        for file, data in content.items():
            (folder / file).write_bytes(data)
        files = storage.upload(name, folder)
    return Manifest(step, of, "job", {"parameters": "p"}, files)


def publish(storage: Storage, step: int, of: Lineage | None = None) -> Manifest:
    manifest = stage(storage, step, of or lineage(), {"data": str(step).encode()})
    storage.publish(manifest)
    return manifest


def found(storage: Storage) -> list[tuple[int, int]]:
    """(generation, step) of everything published that is whole."""
    return [(m.lineage.generation, m.step) for _, m in storage.manifests() if isinstance(m, Manifest)]


def names(storage: Storage) -> set[str]:
    """Everything that lies there."""
    return {path.rpartition("/")[2] for path in storage._fs.ls(storage._root, detail=False)}


def overwrite(storage: Storage, path: str, data: bytes) -> None:
    storage._fs.pipe_file(f"{storage._root}/{path}", data)


def test_nothing_is_there_at_first(storage: Storage) -> None:
    assert list(storage.manifests()) == []


def test_what_was_published_is_found_and_whole(storage: Storage) -> None:
    manifest = stage(storage, 4, lineage())
    assert found(storage) == []
    storage.publish(manifest)
    assert [m for _, m in storage.manifests()] == [manifest]
    with storage.checked(manifest) as folder:
        assert {p.name: p.read_bytes() for p in folder.iterdir()} == CONTENT


def test_a_newer_lineage_comes_first_whatever_its_step(storage: Storage) -> None:
    publish(storage, 9, lineage(0, 1, 2))
    publish(storage, 7, lineage(0, 2, 1))
    publish(storage, 5, lineage(1, 1, 1))
    publish(storage, 8, lineage(0, 2, 1))
    publish(storage, 10, lineage(0, 2, 1))
    assert found(storage) == [(1, 5), (0, 10), (0, 8), (0, 7), (0, 9)]


def test_a_folder_that_was_half_written_is_written_anew(storage: Storage) -> None:
    stage(storage, 4, lineage(), {"old": b"half", "data": b"half"})
    manifest = publish(storage, 4)
    with storage.checked(manifest) as folder:
        assert (folder / "data").read_bytes() == b"4"


@pytest.mark.parametrize(
    ("file", "data", "said"),
    [
        (".metadata", b"abou", "file .metadata has 4 of 5 bytes"),
        (".metadata", b"abouT", "file .metadata is damaged"),
        ("__0_0.distcp", b"", "file __0_0.distcp has 0 of 3000000 bytes"),
    ],
)
def test_a_torn_or_rotten_file_is_found(storage: Storage, file: str, data: bytes, said: str) -> None:
    manifest = stage(storage, 4, lineage())
    storage.publish(manifest)
    overwrite(storage, f"{manifest.name}/{file}", data)
    with pytest.raises(StorageError) as refused, storage.checked(manifest):
        pass
    assert str(refused.value) == said


def test_a_missing_file_is_found(storage: Storage) -> None:
    manifest = stage(storage, 4, lineage())
    storage.publish(manifest)
    storage._fs.rm_file(f"{storage._root}/{manifest.name}/.metadata")
    with pytest.raises(StorageError, match=r"file \.metadata is missing"), storage.checked(manifest):
        pass


@pytest.mark.parametrize("file", ["../secret", "/etc/hostname", "..", "a/b", "", "a\\b"])
def test_a_name_that_leads_out_of_the_folder_is_refused(storage: Storage, file: str) -> None:
    manifest = stage(storage, 4, lineage())
    manifest.files[file] = {"bytes": 1, "blake2b": ""}
    with pytest.raises(StorageError, match="is no file of a checkpoint"), storage.checked(manifest):
        pass


def test_a_missing_folder_is_found(storage: Storage) -> None:
    manifest = publish(storage, 4)
    storage.discard(manifest.name)
    with pytest.raises(StorageError, match="file data is missing"), storage.checked(manifest):
        pass


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[: len(data) // 2], "its manifest can't be read"),
        (lambda data: b"", "its manifest can't be read"),
        (lambda data: b"[]", "its manifest can't be read"),
        (lambda data: b"\xff\xfe", "its manifest can't be read"),
        (lambda data: data.replace(b"job", b"jab"), "its manifest is damaged"),
    ],
)
def test_a_damaged_manifest_hides_no_other(storage: Storage, damage: object, said: str) -> None:
    assert callable(damage)
    publish(storage, 2)
    newer = publish(storage, 4)
    overwrite(storage, f"{newer.name}.json", damage(newer.dump()))
    (first, wrong), (_, older) = storage.manifests()
    assert first == f"{newer.name}.json"
    assert isinstance(wrong, StorageError)
    assert str(wrong).startswith(said)
    assert isinstance(older, Manifest)
    assert older.step == 2


def test_a_manifest_of_another_format_says_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unicorn_mgr.worker.storage.FORMAT", 2)
    newer = Manifest(1, lineage(), "job", {}, {}).dump()
    monkeypatch.undo()
    with pytest.raises(StorageError, match="its format is 2, this program knows 1"):
        Manifest.load(newer)


# -- pruning --------------------------------------------------------------------------------


def test_the_newest_are_kept(storage: Storage) -> None:
    for step in range(6):
        publish(storage, step)
    storage.prune(2, lineage())
    assert found(storage) == [(0, 5), (0, 4)]
    kept = {Manifest(step, lineage(), "job", {}, {}).name for step in (4, 5)}
    assert names(storage) == kept | {f"{name}.json" for name in kept}


def test_what_was_never_published_goes_if_it_is_older(storage: Storage) -> None:
    stage(storage, 3, lineage())
    publish(storage, 4)
    under_way = stage(storage, 5, lineage())
    storage.prune(2, lineage())
    assert found(storage) == [(0, 4)]
    assert {n for n in names(storage) if not n.endswith(".json")} == {
        Manifest(4, lineage(), "job", {}, {}).name,
        under_way.name,
    }


def test_a_newer_lineage_is_left_alone(storage: Storage) -> None:
    for step in (1, 2, 3):
        publish(storage, step, lineage(1, 1, 1))
    newer = stage(storage, 0, lineage(1, 1, 2))
    for step in (7, 8, 9):
        publish(storage, step, lineage(0, 1, 1))
    storage.prune(1, lineage(0, 1, 1))
    assert found(storage) == [(1, 3), (1, 2), (1, 1), (0, 9)]
    assert newer.name in names(storage)


def test_strange_files_are_left_alone(storage: Storage) -> None:
    publish(storage, 1)
    for strange in ("notes.txt", "step-notes.json", "step-1", "step-x.0-1-1", "step-0000000000.0-1-1-1"):
        overwrite(storage, strange, b"mine")
    for step in (2, 3):
        publish(storage, step)
    storage.prune(1, lineage())
    assert found(storage) == [(0, 3)]
    assert {"notes.txt", "step-notes.json", "step-1", "step-x.0-1-1", "step-0000000000.0-1-1-1"} <= names(storage)


# -- a directory ----------------------------------------------------------------------------


def test_a_manifest_appears_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens before the rename, there is no checkpoint; afterwards there is a whole one."""
    storage = Storage(str(tmp_path))
    manifest = stage(storage, 4, lineage())

    def crash(self: Path, target: object) -> None:
        raise OSError("the machine has lost its power")

    monkeypatch.setattr(Path, "rename", crash)
    with pytest.raises(OSError, match="power"):
        storage.publish(manifest)
    assert list(storage.manifests()) == []
    monkeypatch.undo()
    storage.publish(manifest)
    assert found(storage) == [(0, 4)]


def test_a_relative_directory_and_a_file_url_are_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    publish(Storage("here"), 1)
    assert found(Storage(f"file://{tmp_path}/here")) == [(0, 1)]
    assert found(Storage(str(tmp_path / "here"))) == [(0, 1)]


@pytest.mark.parametrize("url", ["nosuch://bucket/x", "hdfs://nowhere/x"])
def test_a_place_that_fsspec_does_not_reach_is_refused(url: str) -> None:
    with pytest.raises(StorageError) as refused:
        Storage(url)
    assert "\n" not in str(refused.value)
