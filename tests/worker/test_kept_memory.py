"""Memory for snapshots: what outlives a worker, who gets it, and when it is given back."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker.warm import Bench, bench
from worker.warm_table import script


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("kept")) as made:
        yield made


@pytest.fixture
def place(template: Bench) -> Bench:
    template.release()
    return template


def live(
    place: Bench, leaves: str = "", slot: int = 0, job_id: str = "one", ends: str = "kill"
) -> tuple[str, list[str]]:
    """A worker writes into its memory, and dies.  What it has found there, and in all that it may read."""
    row = script(
        f"""
        import json, os
        files = json.loads(os.environ["UNICORN_SNAPSHOT_FDS"])
        read = [os.pread(file, 100, 0).decode() for file in files["found"]]
        print((os.pread(files["own"][0], 100, 0).decode(), sorted(filter(None, read))))
        os.pwrite(files["own"][0], {leaves!r}.encode(), 0)
        if {ends!r} == "kill":
            os.kill(os.getpid(), 9)
        """
    )
    outcome = place.warm(row.command, row.files, slot=slot, job_id=job_id)
    assert outcome.status == (-9 if ends == "kill" else 0), outcome
    own, found = ast.literal_eval(outcome.output)
    return own, found


def kept_bytes(place: Bench) -> int:
    """In the template's hands."""
    (template,) = place.host._templates._started
    folder = Path(f"/proc/{template.pid}/fd")
    blocks = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            blocks += path.stat().st_blocks if "unicorn-snapshot" in str(path.readlink()) else 0
    return blocks * 512


def test_the_next_in_its_slot_has_the_same_memory(place: Bench) -> None:
    assert live(place, "a") == ("", [])
    assert live(place, "b") == ("a", ["a"])
    assert live(place) == ("b", ["b"])


def test_others_of_the_job_read_it(place: Bench) -> None:
    live(place, "a", slot=0)
    assert live(place, "b", slot=1) == ("", ["a"])
    assert live(place, "c", slot=2) == ("", ["a", "b"])


def test_another_job_never_sees_it(place: Bench) -> None:
    live(place, "a", slot=0)
    assert live(place, "b", slot=1, job_id="two") == ("", [])


def test_another_job_in_its_slot_has_it_given_back(place: Bench) -> None:
    live(place, "a", slot=0)
    live(place, "b", slot=1)
    live(place, slot=0, job_id="two")
    assert live(place, slot=2) == ("", ["b"])


@pytest.mark.parametrize("ends", ["kill", "well"])
def test_who_ends_well_leaves_nothing(place: Bench, ends: str) -> None:
    live(place, "a", ends=ends)
    assert (kept_bytes(place) > 0) == (ends == "kill")
    assert live(place) == (("a", ["a"]) if ends == "kill" else ("", []))


def test_it_outlives_the_agent(place: Bench) -> None:
    live(place, "a")
    place.restart_agent()
    assert live(place) == ("a", ["a"])


def test_a_job_that_is_over_has_it_given_back(place: Bench) -> None:
    live(place, "a", slot=0, job_id="one")
    live(place, "b", slot=1, job_id="two")
    place.release("two")
    assert live(place, slot=2, job_id="one") == ("", [])
    assert live(place, slot=2, job_id="two") == ("", ["b"])
    place.release()
    live(place, slot=0, job_id="three", ends="well")
    assert kept_bytes(place) == 0


def test_the_next_agent_gives_back_what_it_has_never_seen(place: Bench) -> None:
    live(place, "a", slot=0, job_id="one")
    place.restart_agent()
    place.release("two")
    assert live(place, slot=1, job_id="one") == ("", [])
