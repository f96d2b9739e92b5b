"""Every number the coordinator decides by, with its unit and its reason."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Seconds = Annotated[float, Field(ge=0)]

LOSSES_KEPT = 100
"""Of a node, the newest; more can't be asked for."""


class Settings(BaseModel):
    """Relations between the numbers are checked when they are read, not when they hurt."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    beat_seconds: Seconds = 1.0
    """Between two heartbeats of an agent."""
    lease_seconds: Seconds = 2.5
    """Without a heartbeat for this long a node is silent."""
    halt_seconds: Seconds = 1.0
    """Members that all wait for a silent node's for longer than this are halted: nothing on it goes on."""
    halt_factor: Annotated[float, Field(ge=0)] = 0.5
    """They wait for at least this share of a typical step, as a worker that is slow, and not gone, holds it up, too."""
    silence_seconds_max: Seconds = 30.0
    """A silent node without a job that goes on is lost after this."""
    fence_seconds: Seconds = 120.0
    """A job all of whose members are out of reach starts elsewhere after this, not before."""
    breaker_share: Annotated[float, Field(gt=0, le=1)] = 1 / 3
    """More than this share of the nodes silent at once: the coordinator suspects itself."""
    breaker_nodes_min: Annotated[int, Field(ge=1)] = 3
    """Fewer silent nodes than this never trip the breaker: in a small cluster one is a third."""
    death_batch_seconds: Seconds = 0.02
    """Deaths within this time make one epoch."""
    settle_seconds: Seconds = 0.15
    """A communication error waits this long for a cause that explains it."""
    join_batch_seconds: Seconds = 1.0
    """A ready worker waits this long for others that are about to be ready, too."""
    start_grace_seconds: Seconds = 60.0
    """A job starts with fewer workers than it got if the others are not ready this long after the first."""
    stall_seconds: Seconds = 10.0
    """Least time without progress that is a stall."""
    stall_factor: Annotated[float, Field(ge=1)] = 3.0
    """A stall lasts at least this many typical steps."""
    user_seconds: Seconds = 600.0
    """The same limit for the user's code between steps."""
    second_reading_seconds: Seconds = 1.0
    """Between the two readings that a verdict takes."""
    reading_timeout_seconds: Seconds = 3.0
    """An agent that has not answered by then is not waited for."""
    evidence_seconds_max: Seconds = 3.0
    """A culprit's stacks are waited for this long before it is killed."""
    restart_window_seconds: Seconds = 600.0
    """Restarts are counted over this time."""
    restarts_max: Annotated[int, Field(ge=0)] = 100
    """Per job and window; a job may set its own."""
    gang_restarts_max: Annotated[int, Field(ge=0)] = 3
    """The same for a program that never calls attach(): all of it begins anew each time."""
    restart_free: Annotated[int, Field(ge=0)] = 10
    """Restarts of one (node, cause) in a window that are not delayed."""
    restart_delay_seconds: Seconds = 1.0
    """Delay of the first restart after those; each further one doubles it."""
    restart_delay_seconds_max: Seconds = 60.0
    """The delay grows no further."""
    poison_deaths: Annotated[int, Field(ge=1)] = 2
    """Workers that die on a micro-batch before it is not dealt again."""
    give_up_seconds: Seconds = 120.0
    """Survivors of a job that is given up may save their state for this long."""
    store_seconds: Seconds = 600.0
    """What a worker has left of a checkpoint holds up the end of its job, and the drain of its node, for this long."""
    suspend_seconds: Seconds = 300.0
    """A job that is to wait has so long to store its state; then it keeps its slots until it has stored one."""
    flap_losses: Annotated[int, Field(ge=1, le=LOSSES_KEPT)] = 3
    """A node lost this often within the window flaps: chance alone loses one in a month."""
    flap_window_seconds: Seconds = 3_600.0
    """Losses of a node further apart than this have nothing to do with each other."""
    quarantine_seconds: Seconds = 600.0
    """A node that flaps is not used for this long when it is back: longer than a reboot; 0: never."""
    quarantine_seconds_max: Seconds = 86_400.0
    """Each further quarantine lasts twice as long as the one before, up to this: an operator's day."""
    plan_seconds: Annotated[float, Field(gt=0)] = 0.3
    """The planner's solver has this long; then the best plan known is taken."""
    plan_retry_seconds: Seconds = 5.0
    """After the solver has failed it is tried again this much later."""
    paper_objective: bool = False
    """The planner charges a change as Unicron's paper has it, not each at its own cost."""
    hysteresis: Annotated[float, Field(ge=0)] = 0.01
    """Share of its value that a change of a job must gain beyond its cost."""
    node_mtbf_seconds: Annotated[float, Field(gt=0)] = 30 * 86_400.0
    """Between two failures of one node, on average: how long a plan is likely to last."""
    prepare_seconds: Seconds = 60.0
    """A worker that is to leave keeps its slot for so long until who follows is ready; 0: who follows begins then."""
    backup_bytes_per_second: Annotated[float, Field(gt=0)] = 100e6
    """What each node sends at most of its workers' snapshots to other nodes: a small share of what training may."""
    linger_seconds: Seconds = 10.0
    """A worker that does not count any more has this long to end by itself: it holds a slot."""

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if self.lease_seconds < 2 * self.beat_seconds:
            raise ValueError(
                f"lease_seconds: {self.lease_seconds} is less than two beats of {self.beat_seconds} s: "
                "one late heartbeat would silence a node"
            )
        if self.fence_seconds and self.fence_seconds < 3 * self.lease_seconds:
            raise ValueError(f"fence_seconds: {self.fence_seconds} is less than three leases of {self.lease_seconds} s")
        if self.quarantine_seconds_max < self.quarantine_seconds:
            raise ValueError(
                f"quarantine_seconds_max: {self.quarantine_seconds_max} is less than quarantine_seconds, "
                f"which is {self.quarantine_seconds} s"
            )
        return self
