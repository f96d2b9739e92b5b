"""The ring: the reader sees the newest whole record, whatever the writer is doing; death is seen from outside."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicorn_mgr import ring
from unicorn_mgr.phases import Phase
from unicorn_mgr.ring import RECORDS, SIZE_BYTES, RingReader, RingWriter


def test_nothing_is_read_before_the_first_record() -> None:
    reader = RingReader(bytearray(SIZE_BYTES))
    assert reader.newest() is None
    assert reader.last() == []
    assert reader.step_seconds() == 0.0


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 2**40), st.integers(-1, 2**31 - 1), st.sampled_from(list(Phase)), st.integers(0, 2**31 - 1)
        ),
        min_size=1,
        max_size=3 * RECORDS,
    )
)
def test_what_is_written_is_read(places: list[tuple[int, int, Phase, int]]) -> None:
    memory = bytearray(SIZE_BYTES)
    writer, reader = RingWriter(memory), RingReader(memory)
    for step, micro_batch, phase, sequence in places:
        writer.step, writer.micro_batch, writer.sequence = step, micro_batch, sequence
        writer.write(phase)
        newest = reader.newest()
        assert newest is not None
        assert (newest.step, newest.micro_batch, newest.phase, newest.sequence) == (step, micro_batch, phase, sequence)
    kept = reader.last()
    assert [r.counter for r in kept] == list(range(max(1, len(places) - RECORDS + 1), len(places) + 1))
    assert [(r.step, r.micro_batch, r.phase, r.sequence) for r in kept] == places[-RECORDS:]
    assert [r.counter for r in reader.last(2)] == [r.counter for r in kept[-2:]]


def test_time_never_goes_back() -> None:
    memory = bytearray(SIZE_BYTES)
    writer = RingWriter(memory)
    for _ in range(20):
        writer.write(Phase.COMPUTE)
    times = [r.at_seconds for r in RingReader(memory).last()]
    assert times == sorted(times)
    assert times[0] > 0


def test_a_record_of_an_unknown_phase_is_not_believed() -> None:
    memory = bytearray(SIZE_BYTES)
    writer, reader = RingWriter(memory), RingReader(memory)
    writer.write(Phase.COMPUTE)
    spoilt_at = ring._RECORDS_AT + 1 * ring._STRIDE + struct.calcsize("<QQqqqi")
    assert memory[spoilt_at] == Phase.COMPUTE
    memory[spoilt_at] = 200
    assert reader.newest() is None
    assert reader.last() == []
    writer.write(Phase.REDUCE)
    assert [r.phase for r in reader.last()] == [Phase.REDUCE], "the next one is believed again"


def test_a_record_that_is_being_overwritten_is_not_believed() -> None:
    memory = bytearray(SIZE_BYTES)
    writer, reader = RingWriter(memory), RingReader(memory)
    writer.write(Phase.COMPUTE)
    torn_at = ring._RECORDS_AT + 1 * ring._STRIDE
    memory[torn_at : torn_at + 8] = (999).to_bytes(8, "little")
    assert reader.newest() is None
    assert reader.last() == []


def test_a_writer_that_is_made_again_goes_on_counting() -> None:
    """A script that attaches twice, or a template's child: counters never repeat."""
    memory = bytearray(SIZE_BYTES)
    RingWriter(memory).write(Phase.USER)
    RingWriter(memory).write(Phase.COMPUTE)
    newest = RingReader(memory).newest()
    assert newest is not None
    assert (newest.counter, newest.phase) == (2, Phase.COMPUTE)


def test_the_typical_step_is_told_with_the_next_record() -> None:
    memory = bytearray(SIZE_BYTES)
    writer = RingWriter(memory)
    writer.set_step_seconds(0.125)
    writer.write(Phase.COMPUTE)
    assert RingReader(memory).step_seconds() == 0.125


WORKER = """
import mmap, signal, sys
from unicorn_mgr import ring
memory = mmap.mmap(int(sys.argv[1]), ring.SIZE_BYTES)
ring.enter_death_watch(memory)
print("entered", flush=True)
signal.pause()
"""


def test_a_killed_worker_is_noticed_by_the_kernel_releasing_its_mutex() -> None:
    descriptor = os.memfd_create("ring")
    os.ftruncate(descriptor, SIZE_BYTES)
    memory = mmap.mmap(descriptor, SIZE_BYTES)
    assert ring.prepare_death_watch(memory)
    assert not ring.death_watch_entered(memory)
    command = [sys.executable, "-c", WORKER, str(descriptor)]
    with subprocess.Popen(command, pass_fds=[descriptor], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "entered\n"
        assert ring.death_watch_entered(memory)
        assert not ring.is_exiting(worker.pid)
        died = threading.Event()
        watcher = threading.Thread(target=ring.watch_death, args=(memory, died.set), daemon=True)
        watcher.start()
        worker.kill()
        assert died.wait(10)
        assert ring.is_exiting(worker.pid)
    watcher.join(10)
    os.close(descriptor)


def test_a_stopped_process_is_told_from_a_running_one() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not ring.is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert ring.is_stopped(process.pid)
        process.kill()
    assert not ring.is_stopped(process.pid)
    assert ring.is_exiting(process.pid)


@pytest.mark.parametrize("phase", list(Phase), ids=lambda p: p.name)
def test_every_phase_survives_the_ring(phase: Phase) -> None:
    memory = bytearray(SIZE_BYTES)
    RingWriter(memory).write(phase)
    newest = RingReader(memory).newest()
    assert newest is not None
    assert newest.phase is phase
