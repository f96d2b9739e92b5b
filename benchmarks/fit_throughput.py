"""Fit the constants of throughput profiles to published runs, and say how far off predictions are.

The model of a step is a sum of known quantities times unknown constants, so after division by
the measured seconds it is linear least squares, with all constants at least zero, in two parts:

1. What changes with the number of devices or the batch (data, shards, waiting) is fitted within
   jobs: one layout and micro-batch of one model, whose own speed is left free.
2. With these held, tensor is fitted across the layouts of each job, whose speed is free again;
   the share of the peak that a kind of device reaches is the median over its jobs.

Residuals count by their size rather than its square, since a few published rows are far off.
Constants that the data hardly decide (most published scaling grows the batch with the devices,
which hides what a step costs once) stay near what the hardware promises: being off by a whole
such value costs as much as `PULL` of relative error in one row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import median

import numpy as np

from benchmarks.cluster import Failed
from benchmarks.numbers import percentile
from benchmarks.result import Aim, Found, Options, Table, words
from benchmarks.throughput_rows import Row, pairs, read, unit_of_both
from unicorn_mgr.profiles.fitted import FITTED, Constants, Kind
from unicorn_mgr.profiles.predict import Terms, kind_of, step_seconds, terms

TITLE = "throughput predicted against published runs, each whole source left out in turn"
EXPECTED = {"tensor": 1.0, "data": 1.0, "shards": 0.1, "waiting": 0.01}
"""Traffic at full bandwidth with nothing hidden; under full sharding nine tenths hidden."""

PULL = 0.1
SOURCE_WEIGHT = -0.25
"""Power of a source's number of rows: a long table counts more than a short one, not in proportion."""

RESIDUAL_MIN = 0.005
ITERATIONS = 25
AIM = 0.10

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]
Key = Callable[[Row], Hashable]


@dataclass(frozen=True)
class Errors:
    """|predicted / measured - 1| of many predictions."""

    extrapolated: list[float] = field(default_factory=list)
    """From one size of a job to another."""
    kept: list[float] = field(default_factory=list)
    """Those of them with the same micro-batch: what else changes between published rows is not the size's doing."""
    proportional: list[float] = field(default_factory=list)
    """The same as `extrapolated`, foretold by keeping the speed per device."""
    absolute: list[float] = field(default_factory=list)
    """From the description alone."""

    def __add__(self, other: Errors) -> Errors:
        return Errors(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Errors)))


def run(options: Options) -> Found:
    """Fit without each source in turn, and to all; compare with the constants that are shipped."""
    if options.data is None:
        raise Failed("--data: not given: want the CSV file of published throughput")
    rows, left_out = read(options.data)
    sources = sorted({row.source for row in rows})
    if len(sources) < 2:
        raise Failed(f"--data: {options.data}: {len(sources)} sources that can be used: want two or more")
    unseen = {}
    for source in sources:
        constants = fit([row for row in rows if row.source != source])
        unseen[source] = errors([row for row in rows if row.source == source], constants)
    together = sum(unseen.values(), Errors())
    named = {**unseen, "all of these": together, "all, shipped constants": errors(rows, FITTED)}
    reached = median(together.extrapolated) if together.extrapolated else 1.0
    return Found(
        tables=(
            Table(_ANOTHER_SIZE, tuple(_another_size(name, found) for name, found in named.items())),
            Table(_ABSOLUTE, tuple((name, *_middle(found.absolute)) for name, found in named.items())),
            _constants(fit(rows)),
        ),
        notes=_notes(len(rows), left_out),
        aims=(
            Aim(
                f"median error on another number of devices, each source unseen, at most {AIM:.0%}",
                f"{reached:.1%}",
                reached <= AIM,
            ),
        ),
        samples={source: asdict(found) for source, found in unseen.items()},
    )


# -- the fit --------------------------------------------------------------------------------


def fit(rows: Sequence[Row], pull: float = PULL) -> Constants:
    """The constants that fit these rows best."""
    sizes: dict[Hashable, set[tuple[int, int]]] = defaultdict(set)
    for row in rows:
        sizes[_one_layout(row)].add((row.size, row.shape.global_batch))
    scaled = [row for row in rows if row.told and len(sizes[_one_layout(row)]) > 1]
    nothing: Vector = np.zeros(len(scaled))
    _, scaling = _least(scaled, _one_layout, ("data", "shards", "waiting"), nothing, pull)
    known = np.array([sum(scaling[name] * _column(row, name) for name in scaling) for row in rows])
    speeds, tensor = _least(rows, _one_job, ("tensor",), known, pull)
    of_kind: dict[Kind, list[float]] = defaultdict(list)
    for job, row in {row.job: row for row in rows}.items():
        if speeds[job] > 0:
            of_kind[kind_of(row.shape)].append(1 / speeds[job])
    reached = {kind: min(1.0, median(shares)) for kind, shares in of_kind.items()}
    return Constants(**scaling, **tensor, reached=reached)


def _one_layout(row: Row) -> Hashable:
    return row.job, row.layout, row.shape.micro_batch


def _one_job(row: Row) -> Hashable:
    return row.job


def _column(row: Row, name: str) -> float:
    """A quantity of a step over its measured seconds; waiting is a share of the whole already."""
    t: Terms = terms(row.shape, row.size)
    return t.doublings if name == "waiting" else float(getattr(t, name)) / row.seconds


def _least(
    rows: Sequence[Row], key: Key, shared: Sequence[str], known: Vector, strength: float
) -> tuple[dict[Hashable, float], dict[str, float]]:
    """One speed per group of rows and one value per shared constant, from least absolute relative errors."""
    if not rows:
        return {}, {name: EXPECTED[name] for name in shared}
    groups = {group: at for at, group in enumerate(dict.fromkeys(map(key, rows)))}
    count = len(groups)
    matrix = np.zeros((len(rows), count + len(shared)))
    for at, row in enumerate(rows):
        matrix[at, groups[key(row)]] = _column(row, "compute")
        matrix[at, count:] = [_column(row, name) for name in shared]
    pull = np.zeros((len(shared), matrix.shape[1]))
    pull[:, count:] = np.diag([strength / EXPECTED[name] for name in shared])
    of_source = Counter(row.source for row in rows)
    base = np.array([of_source[row.source] ** SOURCE_WEIGHT for row in rows])
    target, weights = 1 - known, np.ones(len(rows))
    found = np.zeros(matrix.shape[1])
    for _ in range(ITERATIONS):
        w = base * weights
        found = _at_least_zero(
            np.vstack([matrix * w[:, None], pull]), np.concatenate([target * w, np.full(len(shared), strength)]), count
        )
        weights = 1 / np.sqrt(np.maximum(np.abs(matrix @ found - target), RESIDUAL_MIN))
        weights /= weights.mean()
    return (
        {group: float(found[at]) for group, at in groups.items()},
        {name: float(found[count + at]) for at, name in enumerate(shared)},
    )


def _at_least_zero(matrix: np.ndarray[tuple[int, int], np.dtype[np.float64]], target: Vector, free: int) -> Vector:
    """Least squares in which all but the first `free` unknowns are at least zero."""
    active = list(range(matrix.shape[1]))
    while True:
        found = np.zeros(matrix.shape[1])
        found[active] = np.linalg.lstsq(matrix[:, active], target, rcond=None)[0]
        negative = [at for at in active if at >= free and found[at] < 0]
        if not negative:
            return found
        active.remove(min(negative, key=lambda at: float(found[at])))


# -- what is said of it ---------------------------------------------------------------------


def errors(rows: Sequence[Row], constants: Constants) -> Errors:
    """How far predictions with these constants are from these rows."""
    found = Errors()
    for known, asked in pairs(rows):
        unit = unit_of_both(known, asked)
        speed, truth = known.measured[unit], asked.measured[unit]
        error = abs(speed * _rate(asked, constants) / _rate(known, constants) / truth - 1)
        found.extrapolated.append(error)
        if known.shape.micro_batch == asked.shape.micro_batch:
            found.kept.append(error)
        found.proportional.append(abs(speed / known.size * asked.size / truth - 1))
    found.absolute.extend(abs(row.seconds / step_seconds(row.shape, row.size, constants) - 1) for row in rows)
    return found


def _rate(row: Row, constants: Constants) -> float:
    """Tokens per second, as predicted."""
    return row.shape.global_batch * row.shape.sequence_length / step_seconds(row.shape, row.size, constants)


_ANOTHER_SIZE = (
    "another number of devices; source left out",
    "pairs",
    "median",
    "p90",
    "same micro-batch",
    "median",
    "p90",
    "by speed per device: median",
    "p90",
)
_ABSOLUTE = ("without any measurement; source left out", "rows", "median", "p90")


def _another_size(name: str, found: Errors) -> tuple[str, ...]:
    return (name, *_middle(found.extrapolated), *_middle(found.kept), *_middle(found.proportional)[1:])


def _middle(found: Sequence[float]) -> tuple[str, str, str]:
    if not found:
        return ("0", "-", "-")
    return (str(len(found)), f"{median(found):.1%}", f"{percentile(found, 90):.1%}")


def _constants(fitted: Constants) -> Table:
    """Beside those that are shipped: equal unless the data have changed."""
    names = [f.name for f in fields(Constants) if f.name != "reached"]
    rows = [(name, f"{getattr(fitted, name):.3g}", f"{getattr(FITTED, name):.3g}") for name in names]
    for kind in sorted(fitted.reached, key=str):
        name = f"{kind.family}, {kind.level} bits{', mixture of experts' if kind.mixture else ''}"
        shipped = FITTED.reached.get(kind)
        rows.append((f"share of peak: {name}", f"{fitted.reached[kind]:.3g}", f"{shipped:.3g}" if shipped else "-"))
    return Table(("constant", "fitted to all", "shipped"), tuple(rows))


def _notes(used: int, left_out: dict[str, int]) -> tuple[str, ...]:
    return (
        words("""
            Another number of devices: measured on one, predicted on another; same source, model, device, lengths,
            precision and layout, in both directions.  Published rows often change the micro-batch with the size, to
            use the memory that sharding frees: what that gains is not predicted.
        """),
        f"{used} different rows used; left out: "
        + ("; ".join(f"{count} of {reason}" for reason, count in sorted(left_out.items())) or "none")
        + ".",
    )
