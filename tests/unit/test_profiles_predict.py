"""Prediction: the physics of a step, and published runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from unicorn_mgr.profiles.devices import DEVICES, device, level
from unicorn_mgr.profiles.fitted import FITTED, Constants, Kind
from unicorn_mgr.profiles.predict import kind_of, rounds, step_seconds, terms, throughput
from unicorn_mgr.profiles.problem import ProfileError
from unicorn_mgr.profiles.shape import SHARDINGS, ModelShape, fitting

SHAPES = st.builds(
    ModelShape,
    parameters=st.floats(1e8, 1e12),
    sequence_length=st.sampled_from([512, 2048, 8192, 65536]),
    global_batch=st.sampled_from([8, 48, 256, 1000]),
    device=st.sampled_from(["A100", "H100", "B200", "MI300X"]),
    micro_batch=st.sampled_from([1, 2, 8]),
    tensor_parallel=st.sampled_from([1, 2, 8]),
    pipeline_parallel=st.integers(1, 8),
    context_parallel=st.integers(1, 2),
    virtual_stages=st.integers(1, 4),
    sharding=st.sampled_from(SHARDINGS),
    recompute=st.booleans(),
)
REPLICAS = st.integers(1, 300)
NOTHING_BUT_COMPUTE = Constants(0.0, 0.0, 0.0, 0.0, FITTED.reached)

SEVEN_B = ModelShape(parameters=7e9, sequence_length=4096, global_batch=64, device="A100")


# -- physics --------------------------------------------------------------------------------


@each(SHAPES, REPLICAS)
def test_no_job_does_more_than_its_devices_can(shape: ModelShape, replicas: int) -> None:
    size = replicas * shape.replica
    share = FITTED.share(kind_of(shape))
    assert 0 < throughput(shape, size) <= size * shape.device_type.peak(shape.level) * share * (1 + 1e-9)


@each(SHAPES, REPLICAS)
def test_computing_alone_speeds_up_exactly_where_a_round_falls_away(shape: ModelShape, replicas: int) -> None:
    shape = replace(shape, sharding="none")
    here, there = ((replicas + more) * shape.replica for more in (0, 1))
    gained = throughput(shape, there, NOTHING_BUT_COMPUTE) / throughput(shape, here, NOTHING_BUT_COMPUTE)
    saved = rounds(shape.micro_batches, replicas) > rounds(shape.micro_batches, replicas + 1)
    assert gained > 1 + 1e-9 if saved else gained == pytest.approx(1)


@each(st.integers(1, 62))
def test_a_job_that_mostly_computes_rises_from_step_to_step_of_its_staircase(replicas: int) -> None:
    if rounds(64, replicas) > rounds(64, replicas + 1):
        assert throughput(SEVEN_B, replicas + 1) > throughput(SEVEN_B, replicas)
    else:
        assert throughput(SEVEN_B, replicas + 1) <= throughput(SEVEN_B, replicas)


@each(SHAPES, REPLICAS, st.sampled_from([("A800", "A100"), ("H800", "H100"), ("B200", "B300")]))
def test_more_bandwidth_never_hurts(shape: ModelShape, replicas: int, devices: tuple[str, str]) -> None:
    """Each pair differs in links or network, not in what it computes with 16 bits."""
    slower, faster = (step_seconds(replace(shape, device=d), replicas * shape.replica) for d in devices)
    assert faster <= slower


@each(SHAPES, REPLICAS)
def test_more_virtual_stages_never_hurt_and_recomputing_never_helps(shape: ModelShape, replicas: int) -> None:
    size = replicas * shape.replica
    here = step_seconds(shape, size)
    assert step_seconds(replace(shape, virtual_stages=shape.virtual_stages + 1), size) <= here
    assert step_seconds(replace(shape, recompute=False), size) <= step_seconds(replace(shape, recompute=True), size)


def test_a_pipeline_costs_its_filling_and_draining() -> None:
    shape = replace(SEVEN_B, pipeline_parallel=8)
    assert terms(shape, 8).compute / terms(SEVEN_B, 1).compute * 8 == pytest.approx((64 + 7) / 64)
    shape = replace(shape, virtual_stages=7)
    assert terms(shape, 8).compute / terms(SEVEN_B, 1).compute * 8 == pytest.approx((64 + 1) / 64)


def test_communication_that_cannot_be_hidden_shows() -> None:
    """Full sharding over a network a thousandth as fast as its devices: the step lasts as long as its traffic."""
    shape = replace(SEVEN_B, device="TPU-v4", sharding="full", sequence_length=1, devices_per_node=1)
    assert step_seconds(shape, 8192) >= terms(shape, 8192).shards


def test_a_mixture_of_experts_works_with_the_parameters_that_a_token_uses() -> None:
    dense = replace(SEVEN_B, layers=32, hidden=4096)
    mixture = replace(dense, parameters=56e9, active_parameters=7e9)
    assert mixture.flops_per_step == dense.flops_per_step
    assert mixture.bytes_per_device(1) > dense.bytes_per_device(1)
    assert throughput(replace(mixture, device="H100"), 64) < throughput(replace(dense, device="H100"), 64)


@pytest.mark.parametrize(
    ("parameters", "layers", "hidden"), [(175e9, 96, 12288), (405e9, 126, 16384), (8e9, 32, 4096), (1.3e9, 24, 2048)]
)
def test_depth_and_width_are_estimated_where_they_are_not_told(parameters: float, layers: int, hidden: int) -> None:
    shape = replace(SEVEN_B, parameters=parameters)
    assert shape.depth == pytest.approx(layers, rel=0.25)
    assert shape.width == pytest.approx(hidden, rel=0.2)


def test_a_large_model_is_laid_out_as_its_makers_did() -> None:
    """177e9 parameters on H100: tensors over 8 devices, layers over 6 stages (Megatron-LM README)."""
    shape = fitting(
        ModelShape(parameters=177e9, sequence_length=4096, global_batch=1152, device="H100", recompute=True)
    )
    assert (shape.tensor_parallel, shape.pipeline_parallel) == (8, 6)


def test_a_size_that_is_no_whole_replica_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="6 devices are no whole replicas of 4"):
        step_seconds(replace(SEVEN_B, tensor_parallel=4), 6)


# -- published runs -------------------------------------------------------------------------

MT_NLG = ModelShape(
    parameters=530e9,
    layers=105,
    hidden=20480,
    sequence_length=2048,
    global_batch=1920,
    device="A100",
    tensor_parallel=8,
    pipeline_parallel=35,
    recompute=True,
)
"""Smith et al., 2022, section 2.4.  Not among what the constants were fitted to."""

BLOOM = ModelShape(
    parameters=176e9,
    layers=70,
    hidden=14336,
    sequence_length=2048,
    global_batch=2048,
    micro_batch=2,
    device="A100-80GB",
    tensor_parallel=4,
    pipeline_parallel=12,
    recompute=True,
)
"""BigScience tr11-176B chronicles, iteration 12695."""

LLAMA_8B = ModelShape(
    parameters=8e9,
    layers=32,
    hidden=4096,
    sequence_length=8192,
    global_batch=16,
    micro_batch=2,
    device="H100",
    sharding="full",
)
"""torchtitan benchmarks, FSDP and compile, two sequences per device."""


@pytest.mark.parametrize(
    ("shape", "known", "known_seconds", "asked", "asked_seconds", "within"),
    [
        (MT_NLG, 2240, 60.1, 2800, 50.2, 0.02),
        (MT_NLG, 2240, 60.1, 3360, 44.4, 0.05),
        (LLAMA_8B, 8, 16 * 8192 / (8 * 6667), 128, 256 * 8192 / (128 * 6514), 0.03),
    ],
)
def test_another_size_of_a_published_run_is_foretold_from_one(
    shape: ModelShape, known: int, known_seconds: float, asked: int, asked_seconds: float, within: float
) -> None:
    grown = replace(shape, global_batch=shape.global_batch * asked // known) if shape is LLAMA_8B else shape
    foretold = known_seconds * step_seconds(grown, asked) / step_seconds(shape, known)
    assert foretold == pytest.approx(asked_seconds, rel=within)


def test_a_published_run_is_foretold_from_its_description_alone() -> None:
    assert step_seconds(BLOOM, 384) == pytest.approx(105.22, rel=0.05)


# -- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("h100_80gb", "H100"),
        ("a100_40gb", "A100-40GB"),
        ("A100-80GB", "A100"),
        ("NVIDIA H100 SXM5 80GB", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("H100 PCIe", "H100-PCIE"),
        ("H100-96GB-HBM2e(500W)", "H100-96GB"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("gb200", "GB200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("TPU v4", "TPU-V4"),
    ],
)
def test_a_device_is_known_however_it_is_written(written: str, known: str) -> None:
    assert device(written).name == known


@pytest.mark.parametrize("known", DEVICES, ids=lambda d: d.name)
def test_every_device_is_found_by_its_name_and_says_where_its_figures_are_from(known: object) -> None:
    assert known in DEVICES
    found = device(getattr(known, "name", ""))
    assert found is known
    assert found.source
    assert found.peak("16") > found.peaks.get("32", 0)


@pytest.mark.parametrize(
    ("precision", "bits"),
    [("bf16", "16"), ("bf16/fp16", "16"), ("amp_fp8", "8"), ("MXFP8", "8"), ("NVFP4", "4"), ("tf32", "32")],
)
def test_precisions_are_known_by_their_usual_names(precision: str, bits: str) -> None:
    assert level(precision) == bits


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": "Abacus"}, "device: 'Abacus' is not known: want one of V100-16GB, V100, "),
        ({"precision": "fp8"}, "precision: A100 does not compute with 8 bits: want one of 32 bits, 16 bits"),
        ({"precision": "soft"}, "precision: 'soft' is not known: want fp32"),
        ({"parameters": float("nan")}, "parameters: nan: want a number above 0, such as 7e9"),
        ({"parameters": -1.0}, "parameters: -1.0: want a number above 0"),
        ({"active_parameters": 8e9}, r"active_parameters: 8e\+09 are more than all, 7e\+09: want fewer"),
        ({"global_batch": 0}, "global_batch: 0: want a whole number, 1 or more"),
        ({"layers": 0}, "layers: 0: want a whole number, 1 or more"),
        ({"micro_batch": 3}, "micro_batch: 3 does not divide global_batch 64: want a divisor"),
        ({"sharding": "some"}, "sharding: 'some': want one of none, optimizer, full"),
    ],
)
def test_a_model_that_cannot_be_is_refused_in_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ProfileError, match=said) as caught:
        replace(SEVEN_B, **change)
    assert "\n" not in str(caught.value)


def test_a_kind_that_nobody_has_published_is_like_those_most_like_it() -> None:
    shares = [FITTED.reached[Kind(family, "16", mixture=False)] for family in ("ampere", "hopper")]
    assert FITTED.share(Kind("tpu", "16", mixture=False)) == pytest.approx(sum(shares) / 2)
    assert FITTED.share(Kind("cdna3", "32", mixture=False)) in sorted(FITTED.reached.values())
