"""Published throughput, read from a CSV file: each row as a job of ours and what was measured of it.

What a row does not tell is filled in by the same few rules for every source:

- no layout: the fewest devices that hold the model, with as many virtual stages as it has layers;
  one device per replica if it is fully sharded, or if that leaves a part of a replica over;
- no micro-batch: the whole share of a device under FSDP, else 1;
- no batch: eight micro-batches per replica and stage, growing with the number of devices;
- no sequence length: 4,096 tokens;
- no parameters, or a mixture of experts, of which a token uses fewer: FLOP/s over tokens/s;
- no precision: bf16.

Activations are recomputed where the note says so, and in all of BigScience's runs.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cluster import Failed
from unicorn_mgr.profiles.devices import device, level
from unicorn_mgr.profiles.problem import ProfileError
from unicorn_mgr.profiles.shape import ModelShape, Sharding, fitting

SEQUENCE_LENGTH = 4096
MICRO_BATCHES = 8
SHARDED = re.compile(r"FULL_SHARD|FSDP(=[1-9]|(?!=))|HSDP|ZeRO-?3|MaxText", re.IGNORECASE)

Job = tuple[str, ...]
Values = dict[str, float]


@dataclass(frozen=True)
class Row:
    """One published figure."""

    source: str
    job: Job
    """Source, model, device, lengths, precision, kind, how it was run: what stays when only the size changes."""
    layout: Job
    size: int
    shape: ModelShape
    told: bool
    """Whether the source says what a step works on: else its batch is a guess."""
    measured: Values
    """By unit, of all devices together: tokens/s and FLOP/s are both kept, since sources count FLOPs differently."""

    @property
    def seconds(self) -> float:
        """Of a step, from the most direct figure that there is."""
        tokens = self.shape.global_batch * self.shape.sequence_length
        if "tokens/s" in self.measured:
            return tokens / self.measured["tokens/s"]
        return tokens * self.shape.flops_per_token / self.measured["FLOP/s"]


def read(path: Path) -> tuple[list[Row], dict[str, int]]:
    """Rows that can be used, each once, and why others cannot, with how many."""
    try:
        with path.open(newline="") as file:
            table = [{key: value or "" for key, value in line.items()} for line in csv.DictReader(file)]
    except OSError as why:
        raise Failed(f"--data: {path}: {why.strerror}: want a CSV file of published throughput") from why
    rows: dict[tuple[object, ...], Row] = {}
    left_out: dict[str, int] = {}
    for line in table:
        try:
            row = _row(line)
        except (ProfileError, ValueError, KeyError) as why:
            reason = f"{line.get('source')}: {str(why).partition(': want')[0]}"
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        key = (row.job, row.layout, row.size, row.shape.global_batch, row.shape.micro_batch, *row.measured.values())
        rows[key] = row
    return list(rows.values()), left_out


def _row(line: dict[str, str]) -> Row:
    size = int(line["gpus"])
    measured = _measured(line, size)
    shape = _shape(line, size, measured)
    # Segments of a note without digits say how it was run; those with digits, where it stands and how it went.
    how = "; ".join(s.strip() for s in line["note"].split(";") if not re.search(r"\d", s))
    job = (*(line[k] for k in ("source", "model", "gpu_type", "seq_len", "precision", "kind")), how)
    layout = tuple(line[k] for k in ("tp", "pp", "cp"))
    if not measured:
        raise ValueError("no throughput, step time or utilisation")
    useful = measured.get("tokens/s", 0.0) * shape.matrix_flops
    if useful > size * shape.device_type.peak(shape.level):
        raise ValueError("more FLOP/s than its devices have at their peak")
    return Row(line["source"], job, layout, size, shape, bool(line["global_batch_seqs"]), measured)


def _measured(line: dict[str, str], size: int) -> Values:
    tokens, flops, mfu = (_number(line[k]) for k in ("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu"))
    seconds, batch, length = (_number(line[k]) for k in ("step_time_s", "global_batch_seqs", "seq_len"))
    found = {}
    if tokens:
        found["tokens/s"] = tokens * size
    elif seconds and batch:
        found["tokens/s"] = batch * (length or SEQUENCE_LENGTH) / seconds
    if flops:
        found["FLOP/s"] = flops * 1e12 * size
    elif mfu:
        found["FLOP/s"] = mfu * device(line["gpu_type"]).peak(level(line["precision"] or "bf16")) * size
    return found


def _shape(line: dict[str, str], size: int, measured: Values) -> ModelShape:
    sharding: Sharding = "full" if SHARDED.search(f"{line['kind']} {line['note']}") else "optimizer"
    parameters, active = _parameters(line, measured)
    experts = re.search(r"EP=(\d+)", line["note"])
    stages = re.search(r"VP=(\d+)", line["note"])
    shape = ModelShape(
        parameters=parameters,
        active_parameters=active,
        sequence_length=int(_number(line["seq_len"]) or SEQUENCE_LENGTH),
        global_batch=1,
        device=line["gpu_type"],
        tensor_parallel=int(_number(line["tp"]) or 1),
        pipeline_parallel=int(_number(line["pp"]) or 1),
        context_parallel=int(_number(line["cp"]) or 1),
        expert_parallel=int(experts[1]) if experts else 1,
        virtual_stages=int(stages[1]) if stages else 1,
        precision=line["precision"] or "bf16",
        sharding=sharding,
        recompute="act_ckpt=True" in line["note"] or "full AC" in line["note"] or "tr11" in line["source"],
    )
    if not (line["tp"] or line["pp"]):
        shape = _laid_out(shape, size)
    if size % shape.replica:
        raise ValueError(f"{size} devices are no whole replicas of {shape.replica}")
    replicas = size // shape.replica
    local = re.search(r"local batch (\d+)", line["note"])
    guess = int(local[1]) if local else MICRO_BATCHES * shape.pipeline_parallel
    batch = int(_number(line["global_batch_seqs"]) or replicas * guess)
    share = max(1, batch // replicas) if shape.sharding == "full" else 1
    micro = int(_number(line["micro_batch"]) or share)
    return replace(shape, global_batch=batch, micro_batch=math.gcd(micro, batch))


def _laid_out(shape: ModelShape, size: int) -> ModelShape:
    """As its makers may have: they do not tell."""
    if shape.sharding == "full":
        return shape
    found = fitting(replace(shape, recompute=True))
    if size % found.replica:
        return replace(shape, sharding="full")
    stages = max(1, found.depth // found.pipeline_parallel)
    return replace(found, recompute=shape.recompute, virtual_stages=stages)


def _parameters(line: dict[str, str], measured: Values) -> tuple[float, float | None]:
    """All, and those that a token uses if they are fewer."""
    told = (_number(line["params_b"]) or 0.0) * 1e9
    used = measured["FLOP/s"] / measured["tokens/s"] / 6 if len(measured) == 2 else 0.0
    if not told and not used:
        raise ValueError("no parameters")
    mixture = re.search(r"EP=\d", line["note"]) or re.search(r"moe|a\d+b", line["model"], re.IGNORECASE)
    return (told, used) if mixture and 0 < used < told else (told or used, None)


def _number(text: str) -> float | None:
    """None if nothing is told, whatever word stands for that."""
    try:
        return float(text)
    except ValueError:
        return None


def unit_of_both(a: Row, b: Row) -> str:
    """In which two rows can be compared: tokens before FLOPs, which one source may count in two ways."""
    return next((unit for unit in ("tokens/s", "FLOP/s") if unit in a.measured and unit in b.measured), "")


def pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """The same job and layout on different numbers of devices, in both directions."""
    return [
        (a, b)
        for a in rows
        for b in rows
        if a.size != b.size and a.job == b.job and a.layout == b.layout and unit_of_both(a, b)
    ]
