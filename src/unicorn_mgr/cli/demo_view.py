"""What `unicorn demo` shows: a live picture on a terminal, plain lines elsewhere, a table at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import pairwise
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from unicorn_mgr.cli.demo_proof import Change, Check, Cost, Records
from unicorn_mgr.cli.show import count
from unicorn_mgr.messages import ClusterView, IncidentView, JobView

LOSSES_SHOWN = 48
PLAIN_STEPS = 50
"""Without a live picture, a line of progress every so many steps."""

_BARS = "▁▂▃▄▅▆▇█"
_COLOURS = {"up": "green", "running": "green", "closed": "green", "member": "green", "waiting": "cyan"}


class View:
    """Notes with the seconds since the beginning; on a terminal, a picture of the cluster below them."""

    def __init__(self, live: bool) -> None:
        self.console = Console(highlight=False, soft_wrap=not live)
        self._began = time.monotonic()
        self._live = Live(console=self.console, auto_refresh=False, transient=True) if live else None
        self._next_step = 0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def seconds(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._began

    def note(self, text: str, style: str = "") -> None:
        """One line that stays."""
        self.console.print(Text.assemble((f"{self.seconds:6.1f} s  ", "dim"), (text, style)))

    def show(self, cluster: ClusterView, records: Mapping[str, Records]) -> None:
        """Everything at this moment, with the records of each job."""
        if self._live is not None:
            self._live.update(_picture(cluster, records, self.seconds), refresh=True)
            return
        running = [(j, records[j.job]) for j in cluster.jobs if j.size and records[j.job].losses]
        if running and running[0][1].newest_step >= self._next_step:
            self._next_step = running[0][1].newest_step // PLAIN_STEPS * PLAIN_STEPS + PLAIN_STEPS
            told = [
                f"{j.job}: step {r.newest_step}, loss {r.newest_loss:.3f}, {count(j.size, 'worker')}"
                for j, r in running
            ]
            self.note("; ".join(told), "dim")

    def advance(self, text: str, done: int, total: int) -> None:
        """Something without a cluster takes its time."""
        if self._live is not None:
            line = Table.grid(padding=(0, 2))
            line.add_row(Text(text, style="dim"), ProgressBar(total, done, width=40), f"{done} of {total} steps")
            self._live.update(line, refresh=True)


def _picture(cluster: ClusterView, records: Mapping[str, Records], seconds: float) -> RenderableType:
    parts: list[RenderableType] = [_nodes(cluster)]
    parts += [_job(job, records[job.job]) for job in cluster.jobs]
    if cluster.incidents:
        parts += ["", _incidents(cluster.incidents)]
    return Panel(Group(*parts), title="unicorn demo", subtitle=f"{seconds:.0f} s", border_style="magenta")


def _nodes(cluster: ClusterView) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 4, 0, 0), pad_edge=False)
    for name in ("node", "state", "worker", "process", "state", "doing"):
        table.add_column(name, min_width=len(name) + 3)
    workers = {w.node: w for job in cluster.jobs for w in job.workers}
    for node in cluster.nodes:
        worker = workers.get(node.node)
        told: tuple[str | Text, ...] = ()
        if worker is not None and node.state == "up":
            told = (worker.worker, str(worker.pid or ""), _coloured(worker.state), worker.phase)
        table.add_row(node.node, _coloured(node.state), *told)
    return table


def _job(job: JobView, records: Records) -> Text:
    losses = [records.losses[s] for s in sorted(records.losses)]
    line = Text.assemble(
        ("\njob ", "dim"),
        (job.job, "bold"),
        f"  {job.state}, {job.size} of {job.size_max} workers in epoch {job.epoch}",
        ("\nstep ", "dim"),
        (f"{max(records.newest_step, 0):<4}", "bold"),
    )
    if losses:
        line.append_text(Text.assemble(("  loss ", "dim"), (f"{losses[-1]:.3f}  ", "bold"), (_bars(losses), "magenta")))
    return line


def _bars(losses: list[float]) -> str:
    """All losses so far, in as many columns as are shown."""
    if len(losses) < 2:
        return ""
    columns = min(LOSSES_SHOWN, len(losses))
    edges = [len(losses) * i // columns for i in range(columns + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(_BARS[round((m - low) / ((high - low) or 1.0) * (len(_BARS) - 1))] for m in means)


def _incidents(incidents: tuple[IncidentView, ...]) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 3, 0, 0), pad_edge=False)
    for name in ("incident", "cause", "of", "detected by", "state"):
        table.add_column(name)
    for incident in incidents:
        who = incident.worker or incident.node
        table.add_row(incident.id, incident.cause, who, incident.detected_by, _coloured(incident.state))
    return table


def _coloured(state: str) -> Text:
    return Text(state, style=_COLOURS.get(state, "red" if state in ("lost", "silent", "open") else "yellow"))


def summary(console: Console, costs: list[Cost], records: Records) -> None:
    """The table at the end: what broke, and what it cost."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name, width in (("cause", 15), ("of", 7), ("detected by", 18)):
        table.add_column(name, min_width=width)
    for name in ("cause\nknown", "next\nstep", "full\nsize", "steps\nlost", "redone"):
        table.add_column(name, justify="right", no_wrap=True)
    for cost in costs:
        incident = cost.incident
        table.add_row(
            incident.cause,
            incident.worker or incident.node,
            incident.detected_by,
            *(("-" if s is None else f"{s:.3f}"[:5]) for s in (cost.named, cost.stepped, cost.full)),
            str(incident.steps_lost),
            str(incident.micro_batches_recomputed),
        )
    redone = sum(c.incident.micro_batches_recomputed for c in costs)
    console.print("\nWhat broke, and what it cost", style="bold")
    console.print(table)
    console.print(
        "Seconds from the last line that the victim wrote: until the cause was known,\n"
        "all had finished the step that was hit, each slot there was had its worker.\n"
        "Redone: micro-batches of that step that survivors had to compute in its place;\n"
        f"{records.again} of these {redone} the victims had computed before.\n",
        style="dim",
    )


def shared(console: Console, moves: list[Change]) -> None:
    """The second table: who gave, who got, and what it was worth."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("after", justify="right")
    for name in ("job", "slots", "why"):
        table.add_column(name)
    for move in moves:
        after = f"{move.at - moves[0].at:.1f} s"
        table.add_row(after, move.job, f"{move.before} to {move.after}", move.reason)
    console.print("Who gave, who got, and what it was worth", style="bold")
    console.print(table)
    console.print(
        "A weighted slot is what one slot does in a job of weight 1; nobody has told\n"
        "the planner how fast these jobs are.\n",
        style="dim",
    )


def checked(console: Console, checks: list[Check]) -> None:
    """Each check with its outcome."""
    for check in checks:
        mark, style = ("✓", "green") if check.holds else ("✗", "bold red")
        console.print(Text.assemble((f"{mark} ", style), (f"{check.name:<14}", "bold"), check.text))
