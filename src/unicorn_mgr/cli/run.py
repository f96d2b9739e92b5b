"""`unicorn run`: submit a job and stay with it."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from unicorn_mgr import messages
from unicorn_mgr.agent.pycommand import parse
from unicorn_mgr.cli.archive import pack
from unicorn_mgr.cli.common import (
    EXIT_INTERRUPTED,
    Client,
    CoordinatorOption,
    NotThere,
    Problem,
    Terminated,
    TlsOption,
    interrupted_by,
    readable,
)
from unicorn_mgr.cli.operate import order
from unicorn_mgr.cli.output import Output, follow
from unicorn_mgr.cli.progress import Progress
from unicorn_mgr.cli.show import note, say
from unicorn_mgr.coordinator.admission import Rejected, check_spec
from unicorn_mgr.model import AXES, SNAPSHOT_BUDGET, Drill, JobDrill, JobSpec, ReplicaShape

_PASSED = re.compile(
    r"(PATH|VIRTUAL_ENV|PYTHON\w*|LD_LIBRARY_PATH|LANG|LC_\w+|TZ|HOME|CONDA_PREFIX)"
    r"|(OMP|MKL|OPENBLAS|NUMEXPR|KMP|TORCH|PYTORCH|TRITON|NCCL|GLOO|CUDA|HF|TRANSFORMERS)_?\w*"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)

_BUDGET = typer.Option(
    SNAPSHOT_BUDGET,
    "--snapshot-budget",
    metavar="SHARE",
    help="Share of the step time that snapshots in memory may take; 0: none.",
)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(context_settings={"allow_interspersed_args": False})
    def run(
        command: list[str] = typer.Argument(None, metavar="COMMAND", help="What every worker runs."),
        name: str = typer.Option(..., "--name", help="The job's name, unique among running ones."),
        size_min: int = typer.Option(1, "--min", help="Fewest workers it can train with."),
        size_max: int | None = typer.Option(None, "--max", help="Most workers it can use; as --min if not given."),
        replica: list[str] = typer.Option(
            [],
            "--replica",
            metavar="AXIS=N,...",
            help="Split each copy of the model over workers, e.g. shard=2,tensor=2; again: or so, if there is no room.",
        ),
        weight: float = typer.Option(1.0, "--weight", help="Its worth against other jobs."),
        checkpoint: str = typer.Option("", "--checkpoint", metavar="URL", help="Directory or fsspec URL."),
        checkpoint_every: int = typer.Option(0, "--checkpoint-every", metavar="STEPS", help="Steps between two."),
        checkpoint_keep: int = typer.Option(3, "--checkpoint-keep", help="How many are kept."),
        snapshot_budget: float = _BUDGET,
        env: list[str] = typer.Option([], "--env", metavar="NAME[=VALUE]", help="Pass an environment variable on."),
        workdir: Path | None = typer.Option(None, "--workdir", help="Where it runs; here if not given."),
        no_snapshot: bool = typer.Option(False, "--no-snapshot", help="Run on the files as they are, not on a copy."),
        detach: bool = typer.Option(False, "--detach", help="Submit and leave."),
        observe: bool = typer.Option(False, "--observe", help="Detect failures of this job, never act."),
        skip_poison: bool = typer.Option(False, "--skip-poison", help="Go on without micro-batches that kill."),
        inexact: bool = typer.Option(False, "--inexact", help="Its data can't be addressed by number."),
        stall_seconds: float = typer.Option(0.0, "--stall-seconds", help="Least time without progress: a stall."),
        user_seconds: float = typer.Option(0.0, "--user-seconds", help="The same for the user's code between steps."),
        restarts: int = typer.Option(0, "--restarts", help="Processes restarted in ten minutes before it is given up."),
        drill: list[str] = typer.Option([], "--drill", metavar="SEAT:FAULT:STEP:PLACE", hidden=True),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
    ) -> None:
        """Submit a job, show its output, end with its exit code; Ctrl-C asks whether to cancel it."""
        spec = JobSpec(
            name=name,
            command=tuple(command or ()),
            environment=passed_environment(os.environ, env),
            directory=str((workdir or Path.cwd()).resolve()),
            size_min=size_min,
            size_max=size_min if size_max is None else size_max,
            replica=(shapes := [parse_replica(way) for way in replica] or [{}])[0],
            replica_size=math.prod(shapes[0].values()),
            shapes=tuple(map(ReplicaShape, shapes)) if len(shapes) > 1 else (),
            weight=weight,
            checkpoint_url=checkpoint if "://" in checkpoint or not checkpoint else str(Path(checkpoint).resolve()),
            checkpoint_every_steps=checkpoint_every,
            checkpoint_keep=checkpoint_keep,
            snapshot_budget=snapshot_budget,
            observe=observe,
            skip_poison=skip_poison,
            inexact=inexact,
            stall_seconds=stall_seconds,
            user_seconds=user_seconds,
            restarts_max=restarts,
            drills=tuple(map(parse_drill, drill)),
        )
        check(spec, named=lambda field: field.replace("_", "-"))
        launch(spec, Client(coordinator, tls), not no_snapshot, detach)


def parse_replica(text: str) -> dict[str, int]:
    """Axes and sizes of `shard=2,tensor=2`; empty for an empty text.  Raises `Problem`."""
    axes: dict[str, int] = {}
    for item in text.split(",") if text else ():
        name, _, size = item.partition("=")
        if name not in AXES or name in axes or not size.isdecimal() or int(size) < 1:
            raise Problem(f"--replica: {item}: want axes among {', '.join(AXES)} and workers, e.g. shard=2,tensor=2")
        axes[name] = int(size)
    return axes


def launch(spec: JobSpec, client: Client, snapshot: bool, detach: bool) -> None:
    """Submit a job and, unless `detach`, stay with it."""
    digest, archive = pack(Path(spec.directory)) if snapshot else ("", b"")
    submit(client, replace(spec, snapshot=digest), archive)
    if detach:
        say(spec.name)
        return
    with interrupted_by(signal.SIGTERM):
        raise typer.Exit(stay(client, spec.name))


def check(spec: JobSpec, named: Callable[[str], str] = str) -> None:
    """Raise `Problem` for what can be known to be wrong without a coordinator; a field is `named` as it was given."""
    try:
        check_spec(spec)
    except Rejected as wrong:
        raise Problem(str(replace(wrong.mistake, field=named(wrong.mistake.field)))) from wrong
    words = [("workdir", spec.directory), ("checkpoint", spec.checkpoint_url), *(("command", w) for w in spec.command)]
    for field, value in words:
        _check_text(field, value)
    folder = Path(spec.directory)
    if not folder.is_dir():
        raise Problem(f"workdir: {folder}: there is no such directory")
    check_command(spec.command, folder, spec.environment.get("PATH", ""))


def check_command(command: Sequence[str], folder: Path, path: str) -> None:
    """Raise `Problem` for a program or script that is not here.

    What is given by an absolute path may be on the nodes alone: they say so if it is not.
    """
    program = command[0]
    where = str(folder / program) if "/" in program else program
    if not Path(program).is_absolute() and shutil.which(where, path=path) is None:
        looked = f"in {folder}" if "/" in program else "in PATH"
        raise Problem(f"command: {program}: there is no such program {looked}")
    python = parse(command)
    if python is None or python.kind != "script" or Path(python.target).is_absolute():
        return
    if not (folder / python.target).is_file():
        raise Problem(f"command: {python.target}: there is no such script in {folder}")


def passed_environment(environment: Mapping[str, str], asked: list[str]) -> dict[str, str]:
    """What a job takes along: what its interpreter and libraries read, and what is asked for.

    A name that looks like a secret is only passed if it is asked for: the coordinator's
    journal keeps the job.
    """
    found = {k: v for k, v in environment.items() if _PASSED.fullmatch(k) and not _SECRET.search(k) and _is_text(v)}
    for item in asked:
        name, equals, value = item.partition("=")
        if not name:
            raise Problem(f"env: {item}: want NAME or NAME=VALUE")
        if not equals and name not in environment:
            raise Problem(f"env: {name}: it is not set here; give NAME=VALUE")
        found[name] = value if equals else environment[name]
        _check_text("env", name, name + found[name])
    return found


def _check_text(field: str, shown: str, value: str | None = None) -> None:
    if not _is_text(shown if value is None else value):
        raise Problem(f"{field}: {readable(shown)}: not UTF-8")


def _is_text(value: str) -> bool:
    """It can be sent: Python reads bytes that are no UTF-8 as what can't be written as UTF-8 again."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_drill(text: str) -> JobDrill:
    """SEAT[.INCARNATION]:FAULT[:STEP[:PLACE[:SECONDS]]]."""
    parts = text.split(":")
    seat, _, incarnation = parts[0].partition(".")
    try:
        return JobDrill(
            int(seat),
            int(incarnation) if incarnation else -1,
            Drill(
                parts[1],
                int(parts[2]) if len(parts) > 2 else -1,
                parts[3] if len(parts) > 3 else "",
                float(parts[4]) if len(parts) > 4 else 0.0,
            ),
        )
    except (ValueError, IndexError) as wrong:
        raise Problem(f"drill: {text}: want SEAT:FAULT:STEP:PLACE") from wrong


def submit(client: Client, spec: JobSpec, archive: bytes) -> None:
    """Submit once, however often the call has to be repeated."""
    client.call("Submit", messages.SubmitJob(uuid.uuid4().hex, spec, archive), messages.Submitted, seconds=60)


def stay(client: Client, job: str) -> int:
    """Show a job's output and progress until it ends; returns its exit code.

    Ctrl-C asks whether to cancel it; where nobody can answer, it does.
    """
    progress, output = Progress(client), Output()
    cancelled = False
    while True:
        try:
            for view in follow(client, messages.FollowJobRequest(job, True, True), output):
                progress.show(view)
            return progress.end()
        except KeyboardInterrupt as interrupted:
            if cancelled or not (isinstance(interrupted, Terminated) or wants_to_cancel(job)):
                note(f"{job} goes on: `unicorn logs {job} --follow` shows it, `unicorn cancel {job}` ends it")
                return EXIT_INTERRUPTED
            cancelled = True
            note(f"cancelling {job}")
            with contextlib.suppress(NotThere):  # it has ended meanwhile
                order(client, messages.CancelJob(job))


def wants_to_cancel(job: str) -> bool:
    """Ask, once.  Ctrl-C again is a yes, and so is silence where nobody can be asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    try:
        sys.stderr.write(f"\nunicorn: cancel {job}? It goes on otherwise. [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return True
