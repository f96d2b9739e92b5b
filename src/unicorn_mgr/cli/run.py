"""`unicorn run`: submit a job and stay with it."""

from __future__ import annotations

import os
import re
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import typer
from rich.console import Console

from unicorn_mgr import messages
from unicorn_mgr.cli.archive import pack
from unicorn_mgr.cli.common import Client, CoordinatorOption, Problem, TlsOption, Unreachable
from unicorn_mgr.model import Drill, JobDrill, JobSpec

RETRY_SECONDS = 0.5
EXIT_INTERRUPTED = 130

_PASSED = re.compile(
    r"(PATH|VIRTUAL_ENV|PYTHON\w*|LD_LIBRARY_PATH|LANG|LC_\w+|TZ|HOME|CONDA_PREFIX)"
    r"|(OMP|MKL|OPENBLAS|NUMEXPR|KMP|TORCH|PYTORCH|TRITON|NCCL|GLOO|CUDA|HF|TRANSFORMERS)_?\w*"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(context_settings={"ignore_unknown_options": True})
    def run(
        command: list[str] = typer.Argument(None, metavar="-- COMMAND...", help="What every worker runs."),
        name: str = typer.Option(..., "--name", help="The job's name, unique among running ones."),
        size_min: int = typer.Option(1, "--min", help="Fewest workers it can train with."),
        size_max: int | None = typer.Option(None, "--max", help="Most workers it can use; as --min if not given."),
        weight: float = typer.Option(1.0, "--weight", help="Its worth against other jobs."),
        checkpoint: str = typer.Option("", "--checkpoint", metavar="URL", help="Directory or fsspec URL."),
        checkpoint_every: int = typer.Option(0, "--checkpoint-every", metavar="STEPS", help="Steps between two."),
        checkpoint_keep: int = typer.Option(3, "--checkpoint-keep", help="How many are kept."),
        env: list[str] = typer.Option([], "--env", metavar="NAME[=VALUE]", help="Pass an environment variable on."),
        workdir: Path | None = typer.Option(None, "--workdir", help="Where it runs; here if not given."),
        no_snapshot: bool = typer.Option(False, "--no-snapshot", help="Run on the files as they are, not on a copy."),
        detach: bool = typer.Option(False, "--detach", help="Submit and leave."),
        observe: bool = typer.Option(False, "--observe", help="Detect failures of this job, never act."),
        skip_poison: bool = typer.Option(
            False, "--skip-poison", help="Go on without a micro-batch that kills workers."
        ),
        inexact: bool = typer.Option(False, "--inexact", help="Its data can't be addressed by number."),
        stall_seconds: float = typer.Option(
            0.0, "--stall-seconds", help="Least time without progress that is a stall."
        ),
        user_seconds: float = typer.Option(0.0, "--user-seconds", help="The same for the user's code between steps."),
        restarts: int = typer.Option(0, "--restarts", help="Processes restarted in ten minutes before it is given up."),
        drill: list[str] = typer.Option([], "--drill", metavar="SEAT:FAULT:STEP:PLACE", hidden=True),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
    ) -> None:
        """Submit a job, show its output, end with its exit code.  Ctrl-C cancels it."""
        folder = _folder_of(command, workdir)
        client = Client(coordinator, tls)
        digest, archive = ("", b"") if no_snapshot else pack(folder)
        spec = JobSpec(
            name=name,
            command=tuple(command),
            environment=passed_environment(os.environ, env),
            directory=str(folder),
            snapshot=digest,
            size_min=size_min,
            size_max=size_min if size_max is None else size_max,
            weight=weight,
            checkpoint_url=checkpoint if "://" in checkpoint or not checkpoint else str(Path(checkpoint).resolve()),
            checkpoint_every_steps=checkpoint_every,
            checkpoint_keep=checkpoint_keep,
            observe=observe,
            skip_poison=skip_poison,
            inexact=inexact,
            stall_seconds=stall_seconds,
            user_seconds=user_seconds,
            restarts_max=restarts,
            drills=tuple(map(parse_drill, drill)),
        )
        submit(client, spec, archive)
        if detach:
            typer.echo(name)
            return
        sys.exit(stay(client, name))


def _folder_of(command: list[str], workdir: Path | None) -> Path:
    """Where the command is to run."""
    if not command:
        raise Problem("command: give it after --, e.g. unicorn run --name gpt -- python train.py")
    folder = (workdir or Path.cwd()).resolve()
    if not folder.is_dir():
        raise Problem(f"workdir: {folder}: there is no such directory")
    return folder


def passed_environment(environment: Mapping[str, str], asked: list[str]) -> dict[str, str]:
    """What a job takes along: what its interpreter and libraries read, and what is asked for.

    A name that looks like a secret is only passed if it is asked for: the coordinator's
    journal keeps the job.
    """
    found = {k: v for k, v in environment.items() if _PASSED.fullmatch(k) and not _SECRET.search(k)}
    for item in asked:
        name, equals, value = item.partition("=")
        if not name:
            raise Problem(f"env: {item}: want NAME or NAME=VALUE")
        if not equals and name not in environment:
            raise Problem(f"env: {name}: it is not set here; give NAME=VALUE")
        found[name] = value if equals else environment[name]
    return found


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


def stay(client: Client, job: str, from_start: bool = True) -> int:
    """Show a job's output and progress until it ends; returns its exit code."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    shown: tuple[object, ...] = ()
    tails: dict[str, bytes] = {}
    try:
        while True:
            try:
                last: messages.JobView | None = None
                for update in client.follow(
                    "FollowJob", messages.FollowJobRequest(job, True, from_start), messages.JobUpdate
                ):
                    if update.job is None:
                        _print_output(update, tails)
                        continue
                    shown = _print_progress(console, update.job, shown)
                    if update.job.state == "ended":
                        last = update.job
                if last is not None:
                    _print_end(console, last)
                    return last.exit_code
            except Unreachable:
                # The job goes on without its coordinator; so does this.
                from_start = False
                time.sleep(RETRY_SECONDS)
    except KeyboardInterrupt:
        console.print(f"unicorn: cancelling {job}")
        request = messages.OperatorCommand(uuid.uuid4().hex, messages.CancelJob(job))
        client.call("Command", request, messages.CommandDone)
        return EXIT_INTERRUPTED


def _print_output(update: messages.JobUpdate, tails: dict[str, bytes]) -> None:
    """Whole lines, each with its worker before it."""
    if update.dropped_bytes:
        sys.stdout.write(f"[{update.worker}] ... {update.dropped_bytes} bytes left out ...\n")
    lines = (tails.pop(update.worker, b"") + update.output).split(b"\n")
    if lines[-1]:
        tails[update.worker] = lines[-1][-65536:]
    for line in lines[:-1]:
        sys.stdout.write(f"[{update.worker}] {line.decode(errors='replace')}\n")
    sys.stdout.flush()


def _print_progress(console: Console, job: messages.JobView, shown: tuple[object, ...]) -> tuple[object, ...]:
    """One line when the state, size or epoch of a job has changed."""
    now = (job.state, job.size, job.epoch, job.reason if job.state == "waiting" else "")
    if now != shown and job.state != "ended":
        size = f"{job.size} of {job.size_wanted} workers" if job.size_wanted else job.reason
        console.print(f"unicorn: {job.job} {job.state}, {size}, epoch {job.epoch}, step {job.step}")
    return now


def _print_end(console: Console, job: messages.JobView) -> None:
    console.print(f"unicorn: {job.job} ended with {job.exit_code}: {job.reason}")
