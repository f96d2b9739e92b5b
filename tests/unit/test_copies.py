"""Snapshots in a node's memory: which are kept, which make way, and what is told of it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from unit.sealed import PART, content, mark, memory, sealed

from unicorn_mgr import seal
from unicorn_mgr.agent.copies import Copies, Copy, Disowned, NoRoom
from unicorn_mgr.model import Mark, StatePart

SECOND = replace(PART, position=2)
OTHER = replace(PART, job_id="other")
ROOM = 1 << 20
NOBODY_KNOWS = Mark()


def come(copies: Copies, step: int, base: Mark, part: StatePart = PART, size: int = 0, source: str = "gpt/1.0") -> Copy:
    """A copy comes, all of it."""
    data = sealed(mark(step), part, body=b"y" * (size or 1000))
    told = seal.find(memory(data))
    assert told is not None
    copy, file = copies.begin(part, told.mark, told.checksum, told.end, base, source)
    os.pwrite(file, data, 0)
    os.close(file)
    copy.received = copy.size
    assert copies.check(copy) == ""
    return copy


def steps(copies: Copies, part: StatePart = PART) -> list[int]:
    return sorted(found.mark.step for found in copies.look(part))


def test_the_one_that_all_have_stays_while_the_next_comes() -> None:
    copies = Copies(ROOM)
    come(copies, 3, NOBODY_KNOWS)
    come(copies, 5, base=mark(3))
    assert steps(copies) == [3, 5]
    come(copies, 7, base=mark(5))
    assert steps(copies) == [5, 7]


def test_one_that_not_all_parts_have_makes_way_and_the_one_before_stays() -> None:
    """Of step 5 another part never arrived: step 3 is still all there is of everybody."""
    copies = Copies(ROOM)
    come(copies, 3, NOBODY_KNOWS)
    come(copies, 5, base=mark(3))
    come(copies, 7, base=mark(3))
    assert steps(copies) == [3, 7]


def test_whoever_does_not_know_what_all_have_takes_nothing_away() -> None:
    copies = Copies(ROOM)
    come(copies, 3, NOBODY_KNOWS)
    come(copies, 5, base=mark(3))
    come(copies, 7, NOBODY_KNOWS)
    assert steps(copies) == [3, 5, 7]
    come(copies, 9, NOBODY_KNOWS)
    assert steps(copies) == [3, 5, 9]


def test_memory_is_made_as_it_is_needed() -> None:
    """Whoever asks for anything here would wait for all of it, the agent's event loop, too."""
    copies = Copies(1 << 40)
    copy, file = copies.begin(PART, mark(3), 1, 1 << 39, NOBODY_KNOWS, "gpt/1.0")
    assert os.fstat(file).st_blocks == 0
    os.close(file)
    with pytest.raises(NoRoom):
        copies.begin(SECOND, mark(3), 1, (1 << 39) + 1, NOBODY_KNOWS, "gpt/2.0")
    copies.forget(copy.part)


def test_half_a_copy_is_none() -> None:
    """A short one looks like a whole one from its head."""
    copies = Copies(ROOM)
    data = sealed(mark(3))
    copy, file = copies.begin(PART, mark(3), 120_000, len(data), NOBODY_KNOWS, "gpt/1.0")
    os.pwrite(file, data[:-1], 0)
    os.close(file)
    copy.received = len(data) - 1
    assert steps(copies) == []
    assert copies.open(PART, mark(3)) is None
    again, file = copies.begin(PART, mark(3), 120_000, len(data), NOBODY_KNOWS, "gpt/1.0")
    os.close(file)
    assert (again, again.received) == (copy, len(data) - 1)


@pytest.mark.parametrize(
    "data",
    [
        sealed(mark(4)),
        sealed(mark(3), OTHER),
        sealed(mark(3), SECOND),
        sealed(mark(3), replace(PART, shape="shard=4")),
        sealed(mark(3), committed=False),
        sealed(mark(3), body=b"z" * 1000),
        bytes(len(sealed(mark(3)))),
        sealed(mark(3)).replace(b'"step": 3', b'"step": 4'),
    ],
    ids=[
        "stale",
        "foreign job",
        "foreign part",
        "another shape",
        "not committed",
        "another body",
        "nothing",
        "torn head",
    ],
)
def test_what_is_not_what_it_was_said_to_be_is_dropped(data: bytes) -> None:
    copies = Copies(ROOM)
    told = seal.find(memory(sealed(mark(3))))
    assert told is not None
    copy, file = copies.begin(PART, mark(3), told.checksum, told.end, NOBODY_KNOWS, "gpt/1.0")
    os.pwrite(file, data, 0)
    os.close(file)
    copy.received = copy.size
    assert copies.check(copy) == "it is not what it was said to be"
    assert steps(copies) == []


def test_own_ones_are_found_too_and_by_what_they_say_they_are_of() -> None:
    copies = Copies(ROOM)
    files = (memory(sealed(mark(8))), memory(sealed(mark(9), SECOND)))
    copies.add_own("gpt/0.0", "id", files)
    assert steps(copies) == [8]
    assert steps(copies, SECOND) == [9]
    found = copies.open(PART, mark(8))
    assert found is not None
    assert content(found[0]) == sealed(mark(8))


def test_memory_that_another_worker_takes_over_counts_once() -> None:
    file = memory(sealed(mark(8)))
    copies = Copies(ROOM)
    copies.add_own("gpt/0.0", "id", (os.dup(file),))
    before = copies._room()
    copies.add_own("gpt/0.1", "id", (os.dup(file),))
    assert copies._room() == before


def test_a_copy_for_which_there_is_too_little_is_refused_with_the_fix() -> None:
    copies = Copies(20_000)
    come(copies, 3, NOBODY_KNOWS, size=8000)
    with pytest.raises(NoRoom, match="--snapshot-bytes"):
        come(copies, 3, NOBODY_KNOWS, OTHER, size=12_000)
    assert steps(copies) == [3]


def test_with_too_little_for_three_the_older_makes_way() -> None:
    copies = Copies(30_000)
    come(copies, 3, NOBODY_KNOWS, size=12_000)
    come(copies, 5, mark(3), size=12_000)
    come(copies, 7, NOBODY_KNOWS, size=12_000)
    assert steps(copies) == [5, 7]


def test_own_ones_go_before_copies() -> None:
    copies = Copies(40_000)
    come(copies, 3, NOBODY_KNOWS, size=10_000)
    come(copies, 4, NOBODY_KNOWS, OTHER, size=10_000)
    copies.tidy()
    assert (steps(copies), steps(copies, OTHER)) == ([3], [4])
    copies.add_own("gpt/0.0", "id", (memory(bytes(24_000)),))
    copies.tidy()
    assert (steps(copies), steps(copies, OTHER)) == ([], [4])


def test_a_part_of_a_checkpoint_takes_room_and_is_nobody_s_to_copy() -> None:
    """It is written over when it is stored, and no worker begins with it."""
    copies = Copies(40_000)
    come(copies, 3, NOBODY_KNOWS, size=20_000)
    part = memory(sealed(mark(9)))
    os.posix_fallocate(part, 0, 24_000)
    copies.add_own("gpt/0.0", "id", (), part)
    assert (steps(copies), copies.own_files("gpt/0.0")) == ([3], ())
    copies.tidy()
    assert steps(copies) == [], "copies make way for it"
    os.ftruncate(part, 0)
    copies.end_own("gpt/0.0")
    assert copies._room() == 40_000


def test_copies_go_with_their_job_and_when_they_are_obsolete() -> None:
    copies = Copies(ROOM)
    come(copies, 3, NOBODY_KNOWS)
    come(copies, 3, NOBODY_KNOWS, SECOND)
    come(copies, 3, NOBODY_KNOWS, OTHER)
    copies.forget(PART)
    assert (steps(copies), steps(copies, SECOND)) == ([], [3])
    copies.release(("other",))
    assert (steps(copies, SECOND), steps(copies, OTHER)) == ([], [3])
    assert copies._room() < ROOM


def test_of_a_state_that_most_do_not_have_no_copy_stays_or_comes() -> None:
    """Not even what is on its way; copies of others of that part are as good as before."""
    copies = Copies(ROOM)
    come(copies, 3, NOBODY_KNOWS, source="gpt/3.0")
    come(copies, 5, NOBODY_KNOWS)
    come(copies, 5, NOBODY_KNOWS, SECOND, source="gpt/2.0")
    data = sealed(mark(7))
    coming, file = copies.begin(PART, mark(7), 120_000, len(data), NOBODY_KNOWS, "gpt/1.0")
    os.pwrite(file, data, 0)
    os.close(file)
    copies.disown("id", "gpt/1.0")
    coming.received = coming.size
    assert copies.check(coming) == "it has been dropped meanwhile"
    with pytest.raises(Disowned, match="not those of most replicas"):
        come(copies, 8, NOBODY_KNOWS)
    assert (steps(copies), steps(copies, SECOND)) == ([3], [5])
    come(copies, 8, NOBODY_KNOWS, source="gpt/3.0")
    assert steps(copies) == [3, 8]
    copies.release(())
    come(copies, 9, NOBODY_KNOWS)


def test_what_a_dead_worker_has_left_is_there_until_it_is_given_up() -> None:
    copies = Copies(ROOM)
    file = memory(sealed(mark(8)))
    copies.add_own("gpt/0.0", "id", (os.dup(file),))
    copies.end_own("gpt/0.0")
    assert steps(copies) == [8]
    os.ftruncate(file, 0)
    copies.tidy()
    assert steps(copies) == []
    assert copies.own_files("gpt/0.0") == ()


def test_a_snapshot_on_its_way_out_has_its_room() -> None:
    copies = Copies(10_000)
    with copies.staging(8_000), pytest.raises(NoRoom):
        come(copies, 3, NOBODY_KNOWS, size=4_000)
    come(copies, 3, NOBODY_KNOWS, size=4_000)
