"""What a job does in each of its shapes: measured, given, predicted, or taken to be alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from unicorn_mgr.coordinator.admission import check_spec
from unicorn_mgr.coordinator.shapes import in_each_shape, in_shape
from unicorn_mgr.coordinator.state import Job
from unicorn_mgr.coordinator.throughput import PREFERENCE, rising, shape_of, staircases, work_of_step
from unicorn_mgr.model import JobSpec, ModelDescription, ReplicaShape, said
from unicorn_mgr.planner.problem import NOMINAL_FLOPS

FOUR, TWO = {"shard": 4}, {"shard": 2}
MODEL = ModelDescription(1e9, 2_048, 256, device="h100")
LATER = 1 - PREFERENCE


def job(*shapes: dict[str, int], paces: dict[int, float] | None = None, **spec: Any) -> Job:
    """A job that has the first of these shapes."""
    asked = JobSpec("gpt", ("python",), size_min=2, size_max=8, shapes=tuple(map(ReplicaShape, shapes)), **spec)
    asked = replace(in_shape(asked, shapes[0]), checkpoint_url="file:///store")
    check_spec(asked)
    return Job("gpt", asked, 0.0, paces=paces or {})


def stairs(of: Job) -> list[dict[int, float]]:
    """By slots, in each of its shapes."""
    return [dict(staircases(of, spec, 8, ["cpu"])["cpu"]) for spec in in_each_shape(of.spec)]


def test_shapes_of_which_nothing_is_known_are_alike_and_the_first_is_preferred() -> None:
    four, two = stairs(job(FOUR, TWO))
    assert four == {slots: slots * NOMINAL_FLOPS for slots in (4, 8)}
    assert two == pytest.approx({slots: slots * NOMINAL_FLOPS * LATER for slots in (2, 4, 6, 8)})


def test_a_table_knows_slots_and_no_shapes() -> None:
    four, two = stairs(job(FOUR, TWO, throughput={2: 1e12, 4: 1.6e12}))
    assert four == pytest.approx({4: 1.6e12, 8: 3.2e12})
    assert two == pytest.approx({2: 1e12 * LATER, 4: 1.6e12 * LATER, 6: 2.4e12 * LATER, 8: 3.2e12 * LATER})


def test_a_model_is_predicted_as_each_shape_splits_it() -> None:
    tensor, shard = {"tensor": 2}, {"shard": 4}
    of = job(tensor, shard, model=MODEL)
    split = [shape_of(spec) for spec in in_each_shape(of.spec)]
    assert [(s.tensor_parallel, s.pipeline_parallel, s.sharding) for s in split] == [
        (2, 1, "optimizer"),
        (1, 1, "full"),
    ]
    two, four = stairs(of)
    assert (set(two), set(four)) == ({2, 4, 6, 8}, {4, 8})
    assert two[4] != four[4]
    assert 0.5 < two[4] / four[4] < 2


def test_whole_replicas_are_counted_though_a_model_could_be_split_more_finely() -> None:
    """Six slots do no more than five would, which it can't have."""
    of = job(TWO, model=replace(MODEL, global_batch=9))
    assert set(stairs(of)[0]) == {2, 4, 6}


@pytest.mark.parametrize("present", [FOUR, TWO])
def test_a_step_is_the_same_work_in_whatever_shape(present: dict[str, int]) -> None:
    """So what was measured in one of them counts against the others, whichever it has."""
    known = {said(FOUR): {4: 1.0}, said(TWO): {4: 0.5}}
    of = job(FOUR, TWO, paces=known.pop(said(present)))
    of.spec, of.other_paces = in_shape(of.spec, present), known
    four, two = stairs(of)
    assert work_of_step(of) == 4 * NOMINAL_FLOPS
    assert (four[4], two[4]) == (4 * NOMINAL_FLOPS, 8 * NOMINAL_FLOPS)
    assert dict(rising(of, 8)) == pytest.approx({slots: slots * 2 * NOMINAL_FLOPS for slots in (2, 4, 6, 8)})


def test_what_is_measured_in_one_shape_alone_leaves_the_first_preferred() -> None:
    of = job(FOUR, TWO)
    of.spec, of.paces = in_shape(of.spec, TWO), {2: 7.0}
    four, two = stairs(of)
    assert two[4] == pytest.approx(four[4] * LATER)
