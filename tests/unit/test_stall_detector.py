"""Quiet becomes suspicious where, and only where, the rule says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicorn_mgr.agent.detectors.stall import REPEAT_SECONDS, StallDetector
from unicorn_mgr.messages import Sample
from unicorn_mgr.phases import USER_TIME, WAITS_FOR_OTHERS, Limits, Phase

NEVER = float("inf")


def sample(
    phase: Phase = Phase.COMPUTE, quiet: float = 0.0, step_seconds: float = 0.05, stopped: bool = False
) -> Sample:
    return Sample(
        worker="gpt/0.0", phase=int(phase), quiet_seconds=quiet, step_seconds=step_seconds, stopped=stopped, counter=1
    )


LIMITS: dict[Phase, float] = {
    Phase.STARTING: 600.0,
    Phase.USER: 600.0,
    Phase.WAITING: NEVER,
    Phase.COMPUTE: 10.0,
    Phase.REDUCE: 10.0,
    Phase.UPDATE: 600.0,
    Phase.PUBLISH: 10.0,
    Phase.GATHER: 10.0,
    Phase.BUILD: 10.0,
    Phase.TRANSFER: 10.0,
    Phase.RESTORE: 600.0,
    Phase.SNAPSHOT: 10.0,
    Phase.CLOSING: 10.0,
    Phase.ENDED: NEVER,
    Phase.STAGE: 10.0,
}
"""At the defaults, with steps of 50 ms."""


@pytest.mark.parametrize("phase", list(Phase), ids=lambda p: p.name)
def test_each_place_has_its_limit(phase: Phase) -> None:
    limit = LIMITS[phase]
    assert Limits().of(phase, 0.05, stopped=False) == limit
    if limit == NEVER:
        assert StallDetector(Limits()).observe(sample(phase, 1e6), 0.0) is None
        return
    assert StallDetector(Limits()).observe(sample(phase, limit - 0.01), 0.0) is None
    suspicion = StallDetector(Limits()).observe(sample(phase, limit), 0.0)
    assert suspicion is not None
    assert suspicion.limit_seconds == limit


@pytest.mark.parametrize("phase", list(Phase), ids=lambda p: p.name)
def test_a_stopped_process_is_in_nobodys_code(phase: Phase) -> None:
    assert StallDetector(Limits()).observe(sample(phase, 9.99, stopped=True), 0.0) is None
    assert StallDetector(Limits()).observe(sample(phase, 10.0, stopped=True), 0.0) is not None


def test_three_long_steps_are_waited_for() -> None:
    detector = StallDetector(Limits())
    assert detector.observe(sample(quiet=89.9, step_seconds=30.0), 0.0) is None
    assert detector.observe(sample(quiet=90.0, step_seconds=30.0), 0.0) is not None


def test_while_no_typical_step_is_known_the_larger_limit_holds() -> None:
    detector = StallDetector(Limits())
    assert detector.observe(sample(quiet=599.0, step_seconds=0.0), 0.0) is None
    assert detector.observe(sample(quiet=600.0, step_seconds=0.0), 0.0) is not None


def test_a_report_is_repeated_in_case_it_was_lost_but_not_at_once() -> None:
    detector = StallDetector(Limits())
    reported = [at for at in range(30) if detector.observe(sample(quiet=10.0 + at), float(at)) is not None]
    assert reported == list(range(0, 30, int(REPEAT_SECONDS)))


def test_progress_makes_the_next_stall_a_new_one() -> None:
    detector = StallDetector(Limits())
    assert detector.observe(sample(quiet=10.0), 0.0) is not None
    assert detector.observe(sample(quiet=0.0), 1.0) is None
    assert detector.observe(sample(quiet=10.0), 2.0) is not None


@given(
    quiet=st.floats(0, 1e4),
    step_seconds=st.floats(0, 100),
    phase=st.sampled_from(list(Phase)),
    stall=st.floats(0.1, 100),
    factor=st.floats(1, 10),
    user=st.floats(0.1, 1000),
)
def test_no_limit_is_below_the_floor_or_the_typical_steps(
    quiet: float, step_seconds: float, phase: Phase, stall: float, factor: float, user: float
) -> None:
    found = StallDetector(Limits(stall, factor, user)).observe(sample(phase, quiet, step_seconds), 0.0)
    if found is None:
        return
    assert quiet >= found.limit_seconds
    if phase in USER_TIME or phase is Phase.RESTORE or step_seconds == 0:
        assert found.limit_seconds == user
    else:
        assert found.limit_seconds >= stall
        assert found.limit_seconds >= factor * step_seconds


def test_places_where_one_waits_for_others_are_not_the_users_code() -> None:
    assert not WAITS_FOR_OTHERS & USER_TIME
