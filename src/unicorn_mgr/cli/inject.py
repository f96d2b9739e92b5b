"""`unicorn inject`: faults on purpose, for drills."""

from __future__ import annotations

import enum
from pathlib import Path

import typer

from unicorn_mgr.cli.common import Client, CoordinatorOption, Problem, TlsOption
from unicorn_mgr.cli.operate import order
from unicorn_mgr.cli.show import say
from unicorn_mgr.messages import Inject
from unicorn_mgr.model import Drill


class Fault(enum.StrEnum):
    """What a drill can do to a worker."""

    KILL = "kill"
    STOP = "stop"
    EXCEPTION = "exception"
    HANG = "hang"
    SLOW = "slow"
    LOSE_NODE = "lose-node"


PLACES = {Fault.SLOW: "before_reduce", Fault.LOSE_NODE: ""}
"""Where in the step a fault strikes, if not at the head of a micro-batch's forward pass."""

AT_ONCE = frozenset({Fault.KILL, Fault.STOP, Fault.LOSE_NODE})
"""Faults that need no place: without --at-step they strike wherever the worker is."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def inject(
        job: str = typer.Option(..., "--job", help="The job to hurt."),
        worker: int = typer.Option(..., "--worker", metavar="N", min=0, help="Its worker's seat."),
        fault: Fault = typer.Option(..., "--fault", help="What happens to it."),
        at_step: int = typer.Option(
            -1, "--at-step", metavar="N", show_default=False, help="In this step, or the first after it; at once."
        ),
        seconds: float = typer.Option(1.0, "--seconds", min=0.0, help="How much --fault slow slows every step down."),
        coordinator: str | None = CoordinatorOption,
        tls: Path | None = TlsOption,
    ) -> None:
        """Inject a fault, for a drill.  Coordinator and agent must allow it with --allow-drills.

        kill: SIGKILL.  stop: SIGSTOP.  exception: raised in the forward pass.  hang: the forward
        pass never ends.  slow: every step takes --seconds longer, until that worker ends.
        lose-node: its node's agent and all workers there die.
        """
        if at_step < -1:
            raise Problem(f"at-step: {at_step}: want at least 0")
        place = "" if at_step < 0 and fault in AT_ONCE else PLACES.get(fault, "compute")
        drill = Drill(fault.value, at_step, place, seconds if fault is Fault.SLOW else 0.0)
        said = order(Client(coordinator, tls), Inject(job, worker, drill))
        say(f"{said}; see what comes of it with `unicorn incidents --job {job}`")
