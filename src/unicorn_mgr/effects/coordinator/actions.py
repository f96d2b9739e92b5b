"""Actions: what the coordinator's core commands its shell to do."""

from __future__ import annotations

from dataclasses import dataclass

from unicorn_mgr.messages import ToAgent
from unicorn_mgr.model import Epoch


@dataclass(frozen=True, slots=True)
class SendToAgent:
    """Say something to the agent of a node, if it is attached; if not it is said when it is."""

    node: str
    body: ToAgent


@dataclass(frozen=True, slots=True)
class TakeReadings:
    """Read the rings of these workers now, and again later; give the core `ReadingTaken` each time."""

    job: str
    number: int
    workers: dict[str, tuple[str, ...]]
    """Per node."""


@dataclass(frozen=True, slots=True)
class TakeEvidence:
    """Ask for a worker's stacks, and give the core `EvidenceTaken`."""

    node: str
    worker: str


@dataclass(frozen=True, slots=True)
class OpenRendezvous:
    """A new epoch: collect what its members publish."""

    job: str
    epoch: Epoch
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForgetJob:
    """A job has ended: let go of what is kept beside its state, before another takes its name."""

    job: str


@dataclass(frozen=True, slots=True)
class SolvePlan:
    """Have the planner solve the problem of this moment, and give the core `PlanReady`."""

    number: int


Action = SendToAgent | TakeReadings | TakeEvidence | OpenRendezvous | ForgetJob | SolvePlan
