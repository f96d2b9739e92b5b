"""The workers of a pipeline hold different parameters, and are one replica all the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import nn
from worker.together import Meeting, Sibling

from unicorn_mgr.worker import randomness
from unicorn_mgr.worker.fingerprint import fingerprint, of_replica
from unicorn_mgr.worker.replica import Replica
from unicorn_mgr.worker.sharding import share_of_norm
from unicorn_mgr.worker.siblings import of_each, place_of

AXES = {"pipeline": 2}


def siblings(axes: dict[str, int]) -> tuple[Meeting, list[Sibling]]:
    size = place_of(axes, 0).size
    meeting = Meeting(size)
    return meeting, [Sibling(meeting, place_of(axes, at)) for at in range(size)]


def test_places_along_a_pipeline_differ_in_nothing_but_the_stage() -> None:
    places = [place_of({"shard": 2, "tensor": 2, "pipeline": 2}, position) for position in range(8)]
    assert [p.stage for p in places] == [0, 1] * 4
    assert {(p.stages, p.width) for p in places} == {(2, 2)}
    for first, last in zip(places[::2], places[1::2], strict=True):
        assert (first.coordinate, first.speaks) == (last.coordinate, last.speaks)
    assert place_of({"tensor": 2}, 1).stages == 1


def test_each_says_its_value() -> None:
    meeting, both = siblings(AXES)
    assert meeting.at_once([partial(of_each, both[0], 7), partial(of_each, both[1], 0)]) == [(7, 0)] * 2


def small() -> nn.Module:
    return nn.Linear(2, 1)


def large() -> nn.Module:
    """More parameters, and buffers of two kinds."""
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))


@pytest.mark.parametrize("order", [(small, large), (large, small)])
def test_stages_of_any_size_reduce_as_many_buckets_and_the_same_tail(order: Sequence[type]) -> None:
    meeting, both = siblings(AXES)
    models = [made() for made in order]
    found = meeting.at_once(
        [partial(Replica, m, [], {}, bucket_bytes=64, siblings=s) for m, s in zip(models, both, strict=True)]
    )
    assert len({len(replica.buckets) for replica in found}) == 1
    assert len({replica.tail.bucket.local.shape for replica in found}) == 1
    for replica in found:
        replica.open()
        replica.gradients.used[0] = True
        replica.seal(stop=False, checksum_of_seat=(0, 5))
    together = torch.stack([replica.tail.bucket.local for replica in found]).sum(dim=0)
    for replica, model in zip(found, models, strict=True):
        replica.tail.bucket.reduced.copy_(together)
        totals = replica.tail.totals()
        assert totals.used == (True, *[False] * (len(list(model.parameters())) - 1)), "none of the other stage's"
        assert totals.checksums == {0: 10}


def of_models(*models: nn.Module) -> list[dict[str, str]]:
    meeting, both = siblings({"pipeline": len(models)})
    prints = [fingerprint(m, 4, 0, 10, []) for m in models]
    return meeting.at_once([partial(of_replica, p, s) for p, s in zip(prints, both, strict=True)])


def test_all_stages_have_the_fingerprint_of_their_replica() -> None:
    one, other = of_models(small(), large())
    assert one == other
    turned = of_models(large(), small())[0]
    assert {name for name in one if one[name] != turned[name]} == {"order"}
    assert of_models(small(), small())[0]["parameters"] != one["parameters"]
    assert of_models(small(), small())[0]["buffers"] != one["buffers"]
    assert of_models(small()) == [fingerprint(small(), 4, 0, 10, [])]


def test_stages_together_have_the_parameters_of_the_model_that_is_not_cut() -> None:
    whole = nn.ModuleDict({"a": large(), "b": small()})
    (one, other) = of_models(nn.ModuleDict({"a": whole["a"]}), nn.ModuleDict({"b": whole["b"]}))
    alone = fingerprint(whole, 4, 0, 10, [])
    for name in ("parameters", "buffers"):
        assert one[name] == other[name] == alone[name]


def test_the_norm_counts_each_stage_and_copies_within_one_once() -> None:
    p = nn.Parameter(torch.tensor([3.0, 4.0]))
    p.grad = p.detach().clone()
    assert share_of_norm(p, {"pipeline": 2}, 2.0) == 25
    assert share_of_norm(p, {"tensor": 4, "pipeline": 2}, 2.0) == 25 / 4


def test_stages_draw_different_numbers_of_the_same_micro_batch() -> None:
    seeds = {randomness.seed_of(1, step, number, stage) for step in range(9) for number in range(9) for stage in (0, 1)}
    assert len(seeds) == 9 * 9 * 2
    assert randomness.seed_of(1, 2, 3, 0) == randomness.seed_of(1, 2, 3)
