"""A worker from a warm template is what plain python is."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from worker.warm import Bench, NotStarted, bench, python
from worker.warm_ends import ENDS, EXEC, PROCESS, PROCESSES, TORCH
from worker.warm_table import MODULES, SEES, script

TABLE = {
    f"{part}: {name}": row
    for part, rows in {
        "sees": SEES,
        "modules": MODULES,
        "ends": ENDS,
        "process": PROCESS,
        "processes": PROCESSES,
        "torch": TORCH,
        "exec": EXEC,
    }.items()
    for name, row in rows.items()
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored by whatever nohup has started
    with bench(tmp_path_factory.mktemp("warm")) as made:
        yield made
    signal.signal(signal.SIGHUP, inherited)


@pytest.mark.parametrize("name", TABLE)
def test_a_worker_is_what_plain_python_is(place: Bench, name: str) -> None:
    row = TABLE[name]
    plain, warm = place.both(row.command, row.files, row.environment)
    assert row.says in plain.output
    assert row.normal(warm.output) == row.normal(plain.output)
    assert warm.status == plain.status
    assert warm.files == plain.files


def test_a_difference_is_noticed(place: Bench) -> None:
    """This file can fail: what tells the two apart is seen."""
    row = script("import os; print('UNICORN_RING_FD' in os.environ)")
    plain, warm = place.both(row.command, row.files)
    assert (plain.output, warm.output) == ("False\n", "True\n")


def test_a_line_is_there_at_once_though_nobody_flushed(place: Bench) -> None:
    """Where plain python keeps it back: the last line explains a death."""
    row = script("import os; print('last line'); os.kill(os.getpid(), 9)")
    warm = place.warm(row.command, row.files, {"PYTHONUNBUFFERED": ""})
    assert (warm.output, warm.status) == ("last line\n", -9)


def test_workers_of_one_template_draw_different_numbers(place: Bench) -> None:
    row = script(
        """
        import multiprocessing, random, uuid, numpy, torch
        print(random.random()); print(numpy.random.rand()); print(float(torch.rand(()))); print(uuid.uuid4())
        print(multiprocessing.current_process().authkey.hex())
        """
    )
    one, other = (place.warm(row.command, row.files).output.splitlines() for _ in range(2))
    assert len(one) == len(other) == 5
    assert not set(one) & set(other)


def test_a_worker_leaves_nothing_to_the_next(place: Bench) -> None:
    first = script(
        """
        import os, sys, torch, unicorn_mgr
        os.environ["LEFT"] = "1"; os.umask(0o777); os.chdir("/"); sys.path.append("/left")
        unicorn_mgr.left = 1; torch.set_default_dtype(torch.float64)
        """
    )
    second = script(
        """
        import os, sys, torch, unicorn_mgr
        print("LEFT" in os.environ, os.umask(0) == 0o777, os.getcwd() == "/", "/left" in sys.path)
        print(hasattr(unicorn_mgr, "left"), torch.get_default_dtype())
        """
    )
    assert place.warm(first.command, first.files).status == 0
    warm = place.warm(second.command, second.files)
    assert warm.output == "False False False False\nFalse torch.float32\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (python("nosuch.py"), "command: nosuch.py: there is no such script on node n"),
        (["/nowhere/python3", "train.py"], "command: /nowhere/python3: not found in PATH on node n"),
        (["nosuchprogram", "x"], "command: nosuchprogram: there is no such program on node n"),
        (["./nosuch.sh"], "command: ./nosuch.sh: there is no such program on node n"),
    ],
)
def test_what_can_not_be_started_is_the_users_mistake(place: Bench, command: list[str], said: str) -> None:
    with pytest.raises(NotStarted) as refused:
        place.warm(command)
    assert str(refused.value.mistake) == said


def test_an_environment_that_is_too_large_is_refused(place: Bench) -> None:
    with pytest.raises(NotStarted, match=r"environment: 2.* bytes with the command: want at most 180000"):
        place.warm(python("-c", "1"), environment={"LARGE": "x" * 200_000})
    assert place.warm(python("-c", "print(1)")).output == "1\n"
