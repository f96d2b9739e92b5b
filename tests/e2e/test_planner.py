"""Several jobs share a cluster: a scripted day, and after each event everybody has what an oracle says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e.harness import (
    MICRO_BATCHES,
    Cluster,
    Job,
    Undisturbed,
    check_connections,
    check_counted_once,
    check_exact,
    cluster,
)

from unicorn_mgr import messages

STEPS = 450
ARGUMENTS = ["--steps", str(STEPS), "--pace", "0.1"]


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Iterator[Cluster]:
    """Six nodes of a slot."""
    with cluster(tmp_path_factory.mktemp("six"), templates, nodes=6) as found:
        yield found


@dataclass
class Wish:
    """What a job was submitted with."""

    job: Job
    weight: float
    least: int
    most: int

    def worth(self, size: int) -> float:
        """Weighted throughput: rounds of micro-batches are what a step takes."""
        return self.weight * MICRO_BATCHES / -(-MICRO_BATCHES // size)


def oracle(slots: int, wishes: list[Wish]) -> dict[str, int]:
    """All that could be, tried; of equals the one with fewer slots."""
    sizes = itertools.product(*(range(w.least, w.most + 1) for w in wishes))
    fitting = [chosen for chosen in sizes if sum(chosen) <= slots]
    best = max(fitting, key=lambda c: (round(sum(w.worth(k) for w, k in zip(wishes, c, strict=True)), 9), -sum(c)))
    return {w.job.name: k for w, k in zip(wishes, best, strict=True)}


class Day:
    """A cluster, its jobs, and how many slots may be used."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.slots = 6
        self.wishes: list[Wish] = []

    def submit(self, weight: float, least: int, most: int) -> Wish:
        job = self.cluster.submit(ARGUMENTS, size=most, size_min=least, weight=weight)
        self.wishes.append(Wish(job, weight, least, most))
        return self.wishes[-1]

    def comes_to_rest(self) -> None:
        """Everybody has what the oracle says, all of it trains, and no slot has two members."""
        expected = oracle(self.slots, self.wishes)

        def rests(_: object) -> bool:
            jobs = {j.job: j for j in self.cluster.look().jobs if j.job in expected}
            members = {name: sum(w.member for w in j.workers) for name, j in jobs.items()}
            places = [(w.node, w.slot) for j in jobs.values() for w in j.workers if w.member]
            assert len(places) == len(set(places)), "a slot is shared"
            stepping = all(j.step >= 0 for j in jobs.values())
            return stepping and members == expected and {n: j.size for n, j in jobs.items()} == expected

        self.cluster.wait_for(f"{expected}, and all train", rests)


def test_a_day_of_three_jobs(six: Cluster, undisturbed: Undisturbed) -> None:
    """Jobs come, change their weight and end; a worker is killed, a node is lost, drained and back."""
    day = Day(six)
    first = day.submit(1.0, 1, 6)
    day.comes_to_rest()
    second = day.submit(3.0, 1, 3)
    day.comes_to_rest()
    third = day.submit(2.0, 1, 6)
    day.comes_to_rest()

    victim = next(w for w in six.job(second.job.name).workers if w.member)
    six.end_process(victim.pid)
    six.wait_event("IncidentClosed", lambda _: True)
    day.comes_to_rest()

    drained = next(w.node for w in six.job(third.job.name).workers if w.member)
    six.command(messages.DrainNode(drained))
    day.slots = 5
    day.comes_to_rest()
    six.wait_event("NodeEmptied", lambda e: e.node == drained)
    six.command(messages.UndrainNode(drained))
    day.slots = 6
    day.comes_to_rest()

    gone = next(w.node for w in six.job(second.job.name).workers if w.member)
    six.power_off(gone)
    six.wait_event("NodeLost", lambda e: e.node == gone)
    day.slots = 5
    day.comes_to_rest()
    six.power_on(gone)
    day.slots = 6
    day.comes_to_rest()

    six.command(messages.SetWishes(first.job.name, {"weight": "9"}))
    first.weight = 9.0
    day.comes_to_rest()

    six.command(messages.CancelJob(third.job.name))
    day.wishes.remove(third)
    third.job.wait()
    day.comes_to_rest()

    for wish in day.wishes:
        (wish.job.out / "hurry").touch()
    for wish in day.wishes:
        ended = wish.job.wait()
        assert ended.exit_code == 0, f"{ended.reason}\n{six.logs()}"
        check_exact(wish.job, undisturbed("--steps", str(STEPS)))
        check_counted_once(wish.job, STEPS)
        check_connections(wish.job)
    incidents = six.look().incidents
    assert [i.cause for i in incidents] == ["process_killed", "lost_connection"], "moves are no failures"
    assert all(i.steps_lost == 0 for i in incidents)
