"""The fit of throughput constants: it finds what made the figures, and leaves out what cannot be."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cluster import Failed
from benchmarks.fit_throughput import errors, fit, run
from benchmarks.result import Options
from benchmarks.throughput_rows import read
from unicorn_mgr.profiles.fitted import FITTED, Constants
from unicorn_mgr.profiles.predict import step_seconds
from unicorn_mgr.profiles.shape import ModelShape

# fmt: off
HEAD = [
    "source", "model", "params_b", "gpus", "gpu_type", "seq_len", "tflops_per_gpu", "mfu", "tokens_per_s_per_gpu",
    "step_time_s", "global_batch_seqs", "micro_batch", "tp", "pp", "cp", "dp", "precision", "kind", "note",
]
# fmt: on
ELSEWHERE = replace(FITTED, tensor=2.0, data=3.0, waiting=0.02)


def line(**values: object) -> dict[str, str]:
    usual = {
        "source": "one",
        "model": "GPT",
        "seq_len": 2048,
        "gpu_type": "A100",
        "precision": "bf16",
        "kind": "strong",
    }
    return {name: str({**usual, **values}.get(name, "")) for name in HEAD}


def made_up(truth: Constants, source: str, billions: int, sizes: tuple[int, ...]) -> list[dict[str, str]]:
    """What a world with these constants would publish: two layouts, each on several sizes."""
    lines = []
    for tensor in (2, 8):
        for size in sizes:
            shape = ModelShape(
                parameters=billions * 1e9,
                sequence_length=2048,
                global_batch=512,
                device="A100",
                tensor_parallel=tensor,
                pipeline_parallel=2,
            )
            rate = 512 * 2048 / step_seconds(shape, size, truth) / size
            told = {"tokens_per_s_per_gpu": rate, "global_batch_seqs": 512, "micro_batch": 1, "tp": tensor, "pp": 2}
            lines.append(line(source=source, params_b=billions, gpus=size, **told))
    return lines


def written(path: Path, lines: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEAD)
        writer.writeheader()
        writer.writerows(lines)
    return path


def world(folder: Path, truth: Constants) -> Path:
    lines = [*made_up(truth, "one", 20, (32, 128, 512)), *made_up(truth, "two", 60, (64, 256, 1024))]
    return written(folder / "world.csv", lines)


def test_the_fit_finds_what_made_the_figures(tmp_path: Path) -> None:
    rows, left_out = read(world(tmp_path, ELSEWHERE))
    assert (len(rows), left_out) == (12, {})
    constants = fit(rows, pull=1e-6)
    for name in ("tensor", "data", "waiting"):
        assert getattr(constants, name) == pytest.approx(getattr(ELSEWHERE, name), rel=0.01)
    found = errors(rows, constants)
    assert len(found.extrapolated) == len(found.kept) == 24
    assert max(*found.extrapolated, *found.absolute) < 0.001
    assert max(found.proportional) > 0.1


def test_few_figures_leave_the_constants_near_what_hardware_promises(tmp_path: Path) -> None:
    rows, _ = read(world(tmp_path, ELSEWHERE))
    assert fit(rows, pull=1e6).data == pytest.approx(1.0)
    assert fit(rows, pull=1e-6).data > fit(rows).data > 1.0


def test_each_source_is_foretold_by_the_others(tmp_path: Path) -> None:
    found = run(Options(False, 1, tmp_path, 1.0, world(tmp_path, FITTED)))
    assert [row[0] for row in found.tables[0].rows] == ["one", "two", "all of these", "all, shipped constants"]
    assert found.aims[0].met
    assert max(found.samples["one"]["extrapolated"]) < 0.03


def test_without_data_or_with_one_source_there_is_no_fit(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="--data: not given"):
        run(Options(False, 1, tmp_path, 1.0))
    with pytest.raises(Failed, match=r"no\.csv: No such file"):
        run(Options(False, 1, tmp_path, 1.0, tmp_path / "no.csv"))
    alone = written(tmp_path / "alone.csv", made_up(FITTED, "one", 20, (32, 128)))
    with pytest.raises(Failed, match="1 sources that can be used: want two or more"):
        run(Options(False, 1, tmp_path, 1.0, alone))


def test_rows_that_cannot_be_used_are_left_out_with_the_reason(tmp_path: Path) -> None:
    told = {"params_b": 7, "gpus": 8, "global_batch_seqs": 8}
    rows, left_out = read(
        written(
            tmp_path / "odd.csv",
            [
                line(**told, tokens_per_s_per_gpu=3000),
                line(**told, tokens_per_s_per_gpu=3000),
                line(**told),
                line(**told, tokens_per_s_per_gpu=30000),
                line(**told, tokens_per_s_per_gpu=3000, gpu_type="Abacus"),
                line(**told, tokens_per_s_per_gpu=3000, tp=3),
                line(gpus=8, tokens_per_s_per_gpu=3000),
            ],
        )
    )
    assert len(rows) == 1
    assert left_out == {
        "one: no throughput, step time or utilisation": 1,
        "one: more FLOP/s than its devices have at their peak": 1,
        "one: device: 'Abacus' is not known": 1,
        "one: 8 devices are no whole replicas of 3": 1,
        "one: no parameters": 1,
    }


def test_what_a_row_does_not_tell_is_filled_in(tmp_path: Path) -> None:
    rows, _ = read(
        written(
            tmp_path / "gaps.csv",
            [
                line(model="big", params_b=177, gpus=96, mfu=0.47, gpu_type="H100", global_batch_seqs=1152),
                line(model="moe", params_b=30, gpus=8, tflops_per_gpu=180, tokens_per_s_per_gpu=10000, note="x; EP=8"),
                line(model="odd", params_b=177, gpus=40, mfu=0.4, gpu_type="H100", precision=""),
                line(model="fsdp", params_b=7, gpus=8, step_time_s=20, global_batch_seqs=64, kind="FULL_SHARD"),
            ],
        )
    )
    big, mixture, odd, sharded = (row.shape for row in rows)
    assert (big.tensor_parallel, big.pipeline_parallel, big.recompute) == (8, 6, False)
    assert (mixture.active, mixture.expert_parallel) == (3e9, 8)
    assert (odd.sharding, odd.replica, odd.global_batch) == ("full", 1, 320)
    assert (sharded.sharding, sharded.micro_batch, sharded.replica) == ("full", 8, 1)
    assert [row.told for row in rows] == [True, False, False, True]
