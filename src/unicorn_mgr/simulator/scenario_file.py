"""Scenarios in YAML: a cluster, its jobs and how its machines fail, as people write them down.

What is built in is written in the same language (`scenarios/`), so each is an example of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unicorn_mgr.forms import field_of, worded
from unicorn_mgr.profiles.predict import staircase, throughput
from unicorn_mgr.profiles.problem import ProfileError
from unicorn_mgr.profiles.shape import ModelShape
from unicorn_mgr.profiles.sizes import Sizes, sizes_of
from unicorn_mgr.simulator import faults, traces
from unicorn_mgr.simulator.documents import Document
from unicorn_mgr.simulator.history import HOUR
from unicorn_mgr.simulator.scenario import DAY, BadScenario, Fault, Kind, Scenario, Work
from unicorn_mgr.simulator.scenario_form import Faults, Job, Repair, ScenarioFile

MINUTE = 60.0
STATE_BYTES_PER_PARAMETER = 14.0
"""Weights in 16 bits, a copy of them and Adam's two moments in 32."""

FAULTS_MAX = 1e6
"""Of one history, as expected."""

SHAPES = {
    "name": "letters, digits, dots, dashes and underscores, 64 at most",
    "jobs": "a list of jobs",
    "faults": "a list of models of faults",
    "figures": "names and numbers, e.g. {ettr: 0.97}",
}
"""What is wanted where a value is of another kind."""

Place = tuple[str | int, ...]
"""Where in a file: keys, and numbers in lists."""


@dataclass(frozen=True)
class Loaded:
    """A scenario, and the models of its faults."""

    scenario: Scenario
    models: tuple[faults.Model, ...]

    def faults(self, seed: int) -> tuple[Fault, ...]:
        """Those of one history, in the order of time."""
        return faults.draw(self.scenario, self.models, seed)


def schema() -> dict[str, Any]:
    """What a scenario file may say."""
    return ScenarioFile.model_json_schema()


@cache
def names() -> list[str]:
    """Of the built-in scenarios."""
    return sorted(path.stem for path in _built_in().glob("*.yaml"))


def load(name_or_path: str) -> Loaded:
    """A built-in scenario, or one from a file.  Raises `BadScenario`."""
    path = Path(name_or_path)
    if name_or_path in names():
        path = _built_in() / f"{name_or_path}.yaml"
    elif not path.exists():
        near = get_close_matches(name_or_path, names(), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise BadScenario(
            f"scenario: {name_or_path}: there is no such file, and none of that name is built in: {meant}"
            f"want one of {', '.join(names())}, or a file"
        )
    document = Document(path)
    try:
        form = ScenarioFile.model_validate(document.content)
    except ValidationError as wrong:
        raise _mistake(document, dict(wrong.errors()[0])) from wrong
    return _Reader(document, form).loaded()


def _built_in() -> Path:
    return Path(str(resources.files(__package__))) / "scenarios"


def _mistake(document: Document, found: dict[str, Any]) -> BadScenario:
    if found["type"] == "extra_forbidden":
        return document.wrong(found["loc"], "there is no such field; `unicorn simulate --schema` prints all")
    if found["type"] == "missing":
        return document.wrong(found["loc"], "missing; `unicorn simulate --schema` says what it is")
    shapes = {field_of(found): text for field, text in SHAPES.items() if field == found["loc"][-1]}
    return document.wrong(found["loc"], worded(found, shapes))


@dataclass(frozen=True)
class _Reader:
    """Makes a scenario of a form: what no field says by itself is checked here."""

    document: Document
    form: ScenarioFile

    def loaded(self) -> Loaded:
        form = self.form
        self._check_cluster()
        jobs = tuple(self._jobs())
        least = sum(job.size_min for job in jobs)
        if least > self._capacity:
            raise self._wrong(("jobs",), f"their minima are {least} slots of {self._capacity}: want minima that fit")
        scenario = Scenario(
            name=form.name,
            about=form.about,
            nodes=form.nodes,
            slots=form.slots,
            gpus_per_slot=form.gpus_per_slot,
            seconds=form.days * DAY,
            jobs=jobs,
            domain_nodes=form.domain_nodes,
            spares=form.spares,
            source=form.source,
            extra=dict(form.figures),
        )
        return Loaded(scenario, tuple(self._model(number, model) for number, model in enumerate(form.faults)))

    def _wrong(self, place: Place, text: str) -> BadScenario:
        return self.document.wrong(place, text)

    @property
    def _capacity(self) -> int:
        return self.form.nodes * self.form.slots

    def _check_cluster(self) -> None:
        form = self.form
        if form.domain_nodes > form.nodes:
            raise self._wrong(("domain_nodes",), f"{form.domain_nodes} of {form.nodes} nodes: want at most all")
        if form.spares >= form.nodes:
            raise self._wrong(("spares",), f"{form.spares} of {form.nodes} nodes: want fewer")
        if form.repair is not None:
            self._repairs(form.repair, ("repair",))

    # -- jobs ----------------------------------------------------------------------------

    def _jobs(self) -> Iterator[Work]:
        known: set[str] = set()
        for number, job in enumerate(self.form.jobs):
            place: Place = ("jobs", number)
            self._check_job(job, place)
            work = self._predicted(job, place) if job.model is not None else self._given(job, place)
            for name in [job.name] if job.count == 1 else [f"{job.name}-{i + 1}" for i in range(job.count)]:
                if name in known:
                    raise self._wrong((*place, "name"), f"{name}: another job has this name: want one of its own")
                known.add(name)
                yield Work(**{**work, "name": name})

    def _check_job(self, job: Job, place: Place) -> None:
        if sum((job.model is not None, bool(job.throughput), job.flops_per_slot is not None)) != 1:
            raise self._wrong(place, "want model, throughput or flops_per_slot, one of them")
        for field in ("min", "max", "replica"):
            value = getattr(job, field)
            if value is not None and value > self._capacity:
                raise self._wrong(
                    (*place, field), f"{value} slots: the cluster has {self._capacity}: want at most as many"
                )
        for size in job.throughput:
            if size > self._capacity:
                raise self._wrong(
                    (*place, "throughput", size),
                    f"{size} slots: the cluster has {self._capacity}: want at most as many",
                )

    def _predicted(self, job: Job, place: Place) -> dict[str, Any]:
        """By the model of a step, which counts GPUs."""
        assert job.model is not None
        gpus = self.form.gpus_per_slot
        try:
            shape = ModelShape(**job.model.known())
            replica = job.replica or -(-shape.replica // gpus)
            if replica * gpus % shape.replica:
                text = f"{replica} slots of {gpus} GPUs: want whole copies of the model, {shape.replica} GPUs each"
                raise self._wrong((*place, "replica"), text)
            sizes = sizes_of(shape, (job.min or 1) * gpus, (job.max or self._capacity) * gpus)
        except ProfileError as wrong:
            field, _, text = str(wrong).partition(": ")
            inner = (field,) if field in {"min", "max", "model"} else ("model", field)
            raise self._wrong((*place, *inner), f"{text} (in GPUs, {gpus} a slot)" if gpus > 1 else text) from wrong
        return self._work(
            job,
            place,
            replica=replica,
            rates={size: throughput(shape, size * gpus) for size in self._sizes(sizes, replica)},
            micro_batches=job.micro_batches or shape.micro_batches,
            step_flops=job.step_flops or shape.flops_per_step,
            state_bytes=(job.state_gb or shape.parameters * STATE_BYTES_PER_PARAMETER / 1e9) * 1e9,
            model=f"{shape.parameters / 1e9:.3g}B",
        )

    def _sizes(self, sizes: Sizes, replica: int) -> Iterator[int]:
        gpus = self.form.gpus_per_slot
        for size in range(replica, self._capacity + 1, replica):
            if size * gpus in sizes:
                yield size

    def _given(self, job: Job, place: Place) -> dict[str, Any]:
        replica, micro_batches = job.replica or 1, job.micro_batches or 512
        for size in job.throughput:
            if size % replica:
                raise self._wrong((*place, "throughput", size), f"{size} slots: want whole replicas, of {replica}")
        table = dict(sorted(job.throughput.items()))
        if job.flops_per_slot is not None:
            each = job.flops_per_slot * replica
            sizes = range(replica, self._capacity + 1, replica)
            table = {size: each * staircase(micro_batches, size // replica) for size in sizes}
        least, most = job.min or 1, job.max or self._capacity
        rates = {size: rate for size, rate in table.items() if least <= size <= most}
        return self._work(
            job,
            place,
            replica=replica,
            rates=rates,
            micro_batches=micro_batches,
            step_flops=job.step_flops or max(rates.values(), default=1.0) * MINUTE,
            state_bytes=(job.state_gb or 1.0) * 1e9,
            model="",
        )

    def _work(self, job: Job, place: Place, replica: int, rates: dict[int, float], **more: Any) -> dict[str, Any]:
        rising: list[tuple[int, float]] = []
        for size, rate in rates.items():
            if not rising or rate > rising[-1][1] * (1 + 1e-9):
                rising.append((size, rate))
        if not rising:
            raise self._wrong(place, "none of its sizes is whole replicas within min and max: want wider limits")
        return {
            "throughput": tuple(rising),
            "size_min": rising[0][0],
            "size_max": rising[-1][0],
            "weight": job.weight,
            "replica": replica,
            "checkpoint_seconds": job.checkpoint_minutes * MINUTE,
            **more,
        }

    # -- faults --------------------------------------------------------------------------

    def _model(self, number: int, model: Faults) -> faults.Model:
        place: Place = ("faults", number)
        if sum(said is not None for said in (model.per_day, model.times, model.trace)) != 1:
            raise self._wrong(place, "want per_day, times or trace, one of them")
        self._check_burst(model, place)
        shared: dict[str, Any] = {
            "burst": model.burst.nodes if model.burst else 1,
            "burst_within": model.burst.within if model.burst else "domain",
            "offenders": model.offenders.nodes if model.offenders else 0.0,
            "offences": model.offenders.faults if model.offenders else 0.0,
        }
        if model.trace is not None:
            path = self.document.path.parent / model.trace
            if not path.is_file():
                raise self._wrong(
                    (*place, "trace"), f"{model.trace}: there is no such file: want one, from this file's folder on"
                )
            recorded = traces.read(path, self._frame(model, place))
            return faults.Recorded(recorded, model.spread_hours * HOUR, **shared)
        causes = tuple(self._causes(model, place))
        self._check_number(model, causes, place)
        return faults.Drawn(causes, model.per_day or 0.0, model.times or 0, **shared)

    def _check_burst(self, model: Faults, place: Place) -> None:
        if model.burst is None:
            return
        domain = self.form.domain_nodes
        if model.burst.within == "domain" and not domain:
            raise self._wrong(
                (*place, "burst"), "the scenario has no domains: want domain_nodes there, or within: cluster"
            )
        most = domain if model.burst.within == "domain" else self.form.nodes
        if model.burst.nodes > most:
            text = f"{model.burst.nodes} nodes: the {model.burst.within} has {most}: want at most as many"
            raise self._wrong((*place, "burst", "nodes"), text)

    def _check_number(self, model: Faults, causes: tuple[faults.Cause, ...], place: Place) -> None:
        expected = model.times or (model.per_day or 0.0) * self.form.days
        field = "times" if model.times else "per_day"
        if expected > FAULTS_MAX:
            raise self._wrong((*place, field), f"{expected:g} faults: want at most {FAULTS_MAX:g}")
        lost = all(cause.kind is Kind.NODE and cause.repairs.kind == "never" for cause in causes)
        hit = expected * (model.burst.nodes if model.burst else 1)
        if lost and hit > self.form.nodes:
            text = (
                f"{hit:g} nodes are lost and never repaired: the cluster has {self.form.nodes}: want fewer, or a repair"
            )
            raise self._wrong((*place, field), text)

    def _causes(self, model: Faults, place: Place) -> Iterator[faults.Cause]:
        if model.mix and (model.kind or model.cause or model.slowness):
            raise self._wrong((*place, "mix"), "want no cause, kind and slowness beside it")
        if not model.mix and model.kind is None:
            raise self._wrong((*place, "kind"), f"missing: want one of {', '.join(Kind)}, or a mix")
        if not model.mix:
            assert model.kind is not None
            yield self._cause(model.cause, model.kind, 1.0, model.slowness, model.repair, place)
        for number, cause in enumerate(model.mix):
            repair = cause.repair or model.repair
            inner = (*place, "mix", number)
            yield self._cause(cause.cause, cause.kind, cause.share, cause.slowness, repair, inner)

    def _cause(
        self, name: str, kind: Kind, share: float, slowness: float | None, repair: Repair | None, place: Place
    ) -> faults.Cause:
        repair = repair or self.form.repair
        if kind in {Kind.NODE, Kind.SLOW} and repair is None:
            raise self._wrong(place, f"a fault of kind {kind} needs a repair: want one here, or one of the scenario")
        if (kind is Kind.SLOW) != (slowness is not None):
            raise self._wrong((*place, "slowness"), "want it of kind slow, and of no other")
        repairs = self._repairs(repair, (*place, "repair")) if repair is not None else faults.Repairs()
        return faults.Cause(name or str(kind), kind, share, repairs, slowness or 1.0)

    def _frame(self, model: Faults, place: Place) -> traces.Frame:
        if model.mix:
            raise self._wrong((*place, "mix"), "want none beside a trace, which has its own causes")
        repair = model.repair or self.form.repair
        return traces.Frame(
            nodes=self.form.nodes,
            slots=self.form.slots,
            cause=model.cause,
            kind=model.kind,
            repairs=self._repairs(repair, (*place, "repair")) if repair is not None else None,
            slowness=model.slowness or 1.0,
        )

    def _repairs(self, repair: Repair, place: Place) -> faults.Repairs:
        if repair.kind == "never" and repair.hours is not None:
            raise self._wrong((*place, "hours"), "want none where nothing is repaired")
        if repair.kind != "never" and repair.hours is None:
            raise self._wrong((*place, "hours"), f"missing: {repair.kind} wants the mean")
        if repair.kind in {"exponential", "lognormal"} and not repair.hours:
            raise self._wrong((*place, "hours"), f"0: {repair.kind} wants more than 0")
        if repair.sigma is not None and repair.kind != "lognormal":
            raise self._wrong((*place, "sigma"), "want it of lognormal only")
        return faults.Repairs(repair.kind, (repair.hours or 0.0) * HOUR, repair.sigma or 1.0)
