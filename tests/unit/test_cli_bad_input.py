"""What can't be is refused in one line that names field, value and fix, exits with 2 and changes nothing.

What takes a running cluster to refuse stands in tests/e2e/test_cli.py.
"""

from __future__ import annotations

import resource
import shutil
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import ran, unicorn

from unicorn_mgr.cli.main import MODULES
from unicorn_mgr.coordinator.store import Store

NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script in it, and with nothing else when the test ends."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


RUN = ("run", "--name", "gpt")
SCRIPT = ("--", "python", "train.py")

REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    # the command line itself
    "unknown command": (("jbs",), "no such command 'jbs'"),
    "unknown option": ((*RUN, "--maxx", "4", *SCRIPT), "no such option: --maxx"),
    "missing option": (("run", *SCRIPT), "missing option '--name'; see `unicorn run --help`"),
    "missing argument": (("drain",), "missing argument 'NODE'; see `unicorn drain --help`"),
    "not a number": ((*RUN, "--max", "two", *SCRIPT), "max: two: Input should be a valid integer"),
    "not a number, with =": ((*RUN, "--weight=heavy", *SCRIPT), "weight: heavy: Input should be a valid number"),
    "not a choice": (
        ("inject", "--job", "gpt", "--worker", "1", "--fault", "fire"),
        "fault: fire: 'fire' is not one of 'kill', 'stop',",
    ),
    "not a switch": (
        ("observe", "maybe"),
        "invalid value for 'on|off': 'maybe' is not one of 'on', 'off'; see",
    ),
    # jobs
    "no command": (RUN, "command: give it after --, e.g. -- python train.py"),
    "no such script": ((*RUN, "--", "python", "trian.py"), "command: trian.py: there is no such script in {here}"),
    "no such script, with options": ((*RUN, "python", "-u", "trian.py", "--lr", "1"), "command: trian.py: "),
    "no such program": ((*RUN, "--", "pythn", "train.py"), "command: pythn: there is no such program in PATH"),
    "no such program here": ((*RUN, "--", "./train.sh"), "command: ./train.sh: there is no such program in {here}"),
    "no such workdir": ((*RUN, "--workdir", "nowhere", *SCRIPT), "workdir: {here}/nowhere: there is no such directory"),
    "min above max": ((*RUN, "--min", "4", "--max", "2", *SCRIPT), "max: 2: want at least min, which is 4"),
    "an axis that is none": (
        (*RUN, "--replica", "width=2", *SCRIPT),
        "--replica: width=2: want axes among pipeline, shard, tensor and workers, e.g. shard=2,tensor=2",
    ),
    "an axis without a size": (
        (*RUN, "--replica", "shard", *SCRIPT),
        "--replica: shard: want axes among pipeline, shard, tensor and workers, e.g. shard=2,tensor=2",
    ),
    "shapes without a checkpoint": (
        (*RUN, "--min", "2", "--max", "4", "--replica", "shard=4", "--replica", "shard=2", *SCRIPT),
        "checkpoint: missing; a job of several shapes changes from one to another through what is stored there",
    ),
    "half a replica": (
        (*RUN, "--min", "1", "--max", "2", "--replica", "shard=2", *SCRIPT),
        "min: 1: want whole replicas of 2 slots: 2 or 4",
    ),
    "no workers": ((*RUN, "--min", "0", *SCRIPT), "min: 0: want 1 to 100000"),
    "a name of words": (("run", "--name", "my gpt", *SCRIPT), "name: my gpt: want 1 to 63 letters, digits, - and _"),
    "weightless": ((*RUN, "--weight", "0", *SCRIPT), "weight: 0.0: want a number above 0"),
    "no checkpoints kept": ((*RUN, "--checkpoint-keep", "0", *SCRIPT), "checkpoint-keep: 0: want at least 1"),
    "checkpoints of the past": ((*RUN, "--checkpoint-every", "-1", *SCRIPT), "checkpoint-every: -1: want at least 0"),
    "stalls of no length": ((*RUN, "--stall-seconds", "-1", *SCRIPT), "stall-seconds: -1.0: want a number of seconds"),
    "a command that is no text": ((*RUN, "--", "python", "train.py", "\udcff"), "command: ?: not UTF-8"),
    "a script that is no text": ((*RUN, "--", "python", "\udcff.py"), "command: ?.py: not UTF-8"),
    "a workdir that is no text": ((*RUN, "--workdir", "\udcff", *SCRIPT), "workdir: {here}/?: not UTF-8"),
    "checkpoints at what is no text": ((*RUN, "--checkpoint", "s3://\udcff", *SCRIPT), "checkpoint: s3://?: not UTF-8"),
    "a node that is no text": (("drain", "n\udcff", "--coordinator", NOBODY), "n?: not UTF-8"),
    "a job that is no text": (("logs", "gpt\udcff", "--coordinator", NOBODY), "gpt?: not UTF-8"),
    "unset variable": ((*RUN, "--env", "NO_SUCH", *SCRIPT), "env: NO_SUCH: it is not set here; give NAME=VALUE"),
    "a variable that is no text": ((*RUN, "--env", "X=\udcff", *SCRIPT), "env: X: not UTF-8"),
    "nameless variable": ((*RUN, "--env", "=1", *SCRIPT), "env: =1: want NAME or NAME=VALUE"),
    "a worker that is no seat": (("logs", "gpt", "--worker", "two"), "worker: two: want its seat, e.g. 2"),
    "a step before the first": (
        ("inject", "--job", "gpt", "--worker", "1", "--fault", "kill", "--at-step", "-7"),
        "at-step: -7: want at least 0",
    ),
    "two selections": (
        ("events", "--incident", "inc-1", "--job", "gpt"),
        "incident: inc-1: it says which job and node",
    ),
    # where the coordinator is
    "no address": (("status",), "coordinator: not given: say --coordinator HOST:PORT or set UNICORN_COORDINATOR"),
    "not an address": (("status", "--coordinator", "here"), "coordinator: here: want HOST:PORT, e.g. 127.0.0.1:7077"),
    "nobody there": (("status", "--coordinator", NOBODY), f"coordinator: {NOBODY}: nobody answers there; is it"),
    "nobody to submit to": (
        (*RUN, "--coordinator", NOBODY, *SCRIPT),
        f"coordinator: {NOBODY}: nobody answers there; is it running?",
    ),
    "far away without certificates": (
        ("status", "--coordinator", "10.0.0.1:7077"),
        "coordinator: 10.0.0.1:7077: off loopback a coordinator is only reached with --tls FOLDER",
    ),
    "no certificates": (
        ("status", "--coordinator", NOBODY, "--tls", "nowhere"),
        "tls: nowhere/ca.pem: No such file or directory; make certificates with `unicorn certs`",
    ),
    # simulations
    "nothing to simulate": (
        ("simulate",),
        "simulate: give one of SCENARIO (see --list), --from-journal DIR and --swarm-seed N",
    ),
    "two things to simulate": (
        ("simulate", "unicron-trace-a", "--from-journal", "data"),
        "simulate: give one of SCENARIO (see --list), --from-journal DIR and --swarm-seed N",
    ),
    "no such scenario": (("simulate", "unicron"), "scenario: unicron: there is no such file, and none of that name is"),
    "no such policy": (
        ("simulate", "unicron-trace-a", "--policy", "megatron,hope"),
        "policy: hope: there is no such policy; known: ours, ",
    ),
    "no such baseline": (
        ("simulate", "unicron-trace-a", "--baseline", "hope"),
        "baseline: hope: there is no such policy; known: ours, ",
    ),
    "no such costs": (("simulate", "unicron-trace-a", "--costs", "max"), "costs: max: want one of low, mid, high"),
    "rows to nowhere": (
        ("simulate", "unicron-trace-a", "--csv", "nowhere/runs.csv"),
        "simulate: nowhere/runs.csv: there is no folder {here}/nowhere; make it first",
    ),
    "rows into a folder": (("simulate", "unicron-trace-a", "--csv", "."), "csv: .: it is a folder; want a file"),
    "pictures into a file": (
        ("simulate", "unicron-trace-a", "--plot", "train.py"),
        "plot: train.py: it is a file; want a folder",
    ),
    "policies of a swarm": (
        ("simulate", "--swarm-seed", "1", "--policy", "megatron"),
        "simulate: --policy: it belongs to a comparison, and --swarm-seed is none; give one of them",
    ),
    "a first seed of a swarm": (
        ("simulate", "--swarm-seed", "1", "--seed", "0"),
        "simulate: --seed: it belongs to a comparison, and --swarm-seed is none; give one of them",
    ),
    "a scenario with less": (
        ("simulate", "unicron-trace-a", "--without", "1"),
        "simulate: --without: it belongs to --swarm-seed N; leave it out",
    ),
    "a journal of nobody": (
        ("simulate", "--from-journal", "."),
        "journal: .: there is no journal.sqlite in it; give the --data directory of a coordinator",
    ),
    "seeds of a journal": (
        ("simulate", "--from-journal", ".", "--seeds", "3"),
        "simulate: --seed and --seeds: a journal's faults are dated, not drawn; leave them out",
    ),
    # services
    "open to the world": (
        ("coordinator", "--listen", "0.0.0.0:0", "--data", "data"),
        "listen: 0.0.0.0:0: without --tls only loopback is served; give --tls FOLDER",
    ),
    "not a port": (("coordinator", "--listen", "127.0.0.1:99999"), "listen: 127.0.0.1:99999: want HOST:PORT"),
    "unknown setting": (("coordinator", "--set", "leese=1"), "set: leese: there is no such setting; see `unicorn"),
    "not a setting": (("coordinator", "--set", "lease_seconds"), "set: lease_seconds: want NAME=VALUE"),
    "a setting of words": (("coordinator", "--set", "lease_seconds=long"), "set: lease_seconds: long: Input should"),
    "settings at odds": (
        ("coordinator", "--set", "lease_seconds=1"),
        "set: lease_seconds: 1.0 is less than two beats of 1.0 s: one late heartbeat would silence a node",
    ),
    "agent of nobody": (("agent",), "coordinator: not given: say --coordinator HOST:PORT"),
    "agent with a name of words": (("agent", "--node", "my node"), "node: my node: want 1 to 63 letters, digits"),
    "agent in a rack of words": (
        ("agent", "--coordinator", NOBODY, "--domain", "rack 7"),
        "domain: rack 7: want 1 to 63 letters, digits, - and _",
    ),
    "agent without slots": (("agent", "--coordinator", NOBODY, "--slots", "0"), "slots: 0: want 1 to 1024, or auto"),
    "agent of a strange device": (("agent", "--coordinator", NOBODY, "--device", "abacus"), "device: abacus: want cpu"),
    "agent far away": (
        ("agent", "--coordinator", "10.0.0.1:7077", "--slots", "1", "--data", "data"),
        "coordinator: 10.0.0.1:7077: off loopback a coordinator is only reached with --tls FOLDER",
    ),
    "agent without certificates": (
        ("agent", "--coordinator", NOBODY, "--slots", "1", "--data", "data", "--tls", "nowhere"),
        "tls: nowhere/ca.pem: No such file or directory",
    ),
    "a cluster of nothing": (("local", "--nodes", "0"), "nodes: 0: want 1 to 64"),
    "certificates for ever": (("certs", "c", "--host", "h", "--days", "0"), "days: 0: want 1 to 3650"),
    # journals
    "no such journal": (("replay", "nowhere"), "journal: nowhere: there is no such file or directory; give the --data"),
    "no journal in it": (("replay", "."), "journal: .: there is no journal.sqlite in it; give the --data directory"),
    "not a journal": (("replay", "train.py"), "journal: train.py: file is not a database; give the journal of a"),
    "several stories": (("replay", ".", "--job", "a", "--node", "b"), "replay: --job, --node and --incident: give one"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, here: Path) -> None:
    words, says = REFUSED[case]
    problem = unicorn(*words).problem
    assert problem.startswith(says.format(here=here)), problem
    assert [p.name for p in here.iterdir()] == ["train.py"]


def test_every_command_has_help_that_fits_the_list() -> None:
    listed = unicorn("--help").out
    for name in MODULES:
        shown = unicorn(name, "--help")
        assert shown.code == 0
        assert shown.out.startswith(f"Usage: unicorn {name} ")
        assert f"  {name} " in listed


# -- services that are processes --------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[str]:
    """An address somebody else listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield "{}:{}".format(*listener.getsockname())


def coordinator(*words: str) -> str:
    """What a coordinator that can't start has to say."""
    given = dict(zip(words[::2], words[1::2], strict=True))
    options = {"--listen": "127.0.0.1:0", "--metrics": "", "--data": "data", **given}
    return ran("coordinator", *(word for pair in options.items() for word in pair)).problem


def test_a_port_in_use(taken: str, here: Path) -> None:
    said = f"listen: {taken}: the port is in use or can't be had; choose another --listen"
    assert coordinator("--listen", taken) == said
    assert coordinator("--metrics", taken) == f"metrics: {taken}: Address already in use; choose another --metrics"
    assert not (here / "data").exists()


def test_a_data_directory_in_use(here: Path) -> None:
    held = Store(here / "data")
    try:
        assert coordinator() == "data: data: another coordinator uses it; stop that one first"
    finally:
        held.close()


@pytest.fixture
def journal(here: Path) -> Path:
    """A data directory, closed."""
    Store(here / "data").close()
    return here / "data" / "journal.sqlite"


def test_a_data_directory_of_a_newer_schema(journal: Path) -> None:
    with sqlite3.connect(journal) as database:
        database.execute("UPDATE meta SET value='99' WHERE key='schema'")
    database.close()
    before = journal.read_bytes()
    newer = "data: data: its schema is 99, this program knows 1; install the newer program"
    assert coordinator() == newer
    assert unicorn("replay", "data").problem == newer
    assert journal.read_bytes() == before


@pytest.mark.parametrize("damage", ["DELETE FROM meta", "UPDATE meta SET value='x' WHERE key='schema'"])
def test_a_damaged_data_directory(journal: Path, damage: str) -> None:
    with sqlite3.connect(journal) as database:
        database.execute(damage)
    database.close()
    assert coordinator().startswith(f"data: {journal.relative_to(Path.cwd())}: it is damaged (")
    assert unicorn("replay", "data").problem.startswith("journal: data/journal.sqlite: it is damaged (")


def test_a_data_directory_that_cannot_be_made(here: Path) -> None:
    assert coordinator("--data", "train.py/data") == "data: train.py/data: Not a directory; choose another --data"


def test_a_full_disk() -> None:
    """A limit on the size of files is the nearest thing to a full disk that anybody can have."""

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    options = ("--listen", "127.0.0.1:0", "--metrics", "", "--data", "data")
    problem = ran("coordinator", *options, preexec_fn=full).problem
    assert problem.startswith("data: data/journal.sqlite: ")
    assert problem.endswith("; restore it from a backup or choose another --data")


# -- certificates -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    assert unicorn("certs", str(made), "--host", "localhost").code == 0
    return made


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("ca.pem", "x", "it is not a certificate in PEM form"),
        ("cert.pem", "", "it is not a certificate in PEM form"),
        ("key.pem", "-----BEGIN PRIVATE KEY-----", "it is not a private key in PEM form without a password"),
    ],
)
def test_a_corrupt_certificate(certificates: Path, here: Path, name: str, text: str, why: str) -> None:
    folder = here / "mine"
    shutil.copytree(certificates / "viewer", folder)
    (folder / name).write_text(text)
    says = f"tls: {folder / name}: {why}; make certificates with `unicorn certs`"
    assert unicorn("status", "--coordinator", NOBODY, "--tls", str(folder)).problem == says
    assert coordinator("--tls", str(folder)) == says
    assert not (here / "data").exists()


def test_the_key_of_another_certificate(certificates: Path, here: Path) -> None:
    shutil.copytree(certificates / "viewer", here / "mine")
    shutil.copy(certificates / "operator" / "key.pem", here / "mine")
    problem = unicorn("status", "--coordinator", NOBODY, "--tls", "mine").problem
    assert problem.startswith("tls: mine/key.pem: it is not the key of cert.pem")
