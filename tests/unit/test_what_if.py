"""What would be if: the imagined problem is the real one as it would be, and nothing is touched."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator

import pytest
from unit.test_core_planning import Planned

from unicorn_mgr.coordinator.admission import Rejected, commanded
from unicorn_mgr.effects import coordinator as e
from unicorn_mgr.messages import DegradeNode
from unicorn_mgr.model import JobSpec

SLOT = 1e12
OTHER = JobSpec("other", ("python",), directory="/w", size_min=2, size_max=2, weight=9.0)


@pytest.fixture
def world() -> Iterator[Planned]:
    """Four slots, all of them a job's that could use six."""
    made = Planned(nodes=4)
    made.train_planned("gpt", 1, 6)
    before = copy.deepcopy(made.state)
    yield made
    assert made.state == before, "nothing is touched"


def sizes(world: Planned, *changes: str, job: JobSpec | None = None) -> dict[str, tuple[int, int]]:
    return {name: (j.size_before, j.size_after) for name, j in world.imagine(*changes, job=job).items()}


@pytest.mark.parametrize(
    ("changes", "job", "expected"),
    [
        (("lose n1",), None, {"gpt": (4, 3)}),
        (("lose n1", "lose n2"), None, {"gpt": (4, 2)}),
        (("lose n0", "lose n1", "lose n2", "lose n3"), None, {"gpt": (4, 0)}),
        (("drain n1",), None, {"gpt": (4, 3)}),
        (("degrade n1 speed=0.5",), None, {"gpt": (4, 3)}),
        (("degrade n1 speed=0.5", "degrade n1 speed=1"), None, {"gpt": (4, 4)}),
        (("add 1 slot",), None, {"gpt": (4, 5)}),
        (("add 8 slots",), None, {"gpt": (4, 6)}),
        (("add 1 slot", "add  1 slots"), None, {"gpt": (4, 6)}),
        (("lose n1", "add 2 slots", "lose new-1"), None, {"gpt": (4, 4)}),
        (("job gpt max=2",), None, {"gpt": (4, 2)}),
        (("end gpt",), None, {"gpt": (4, 0)}),
        ((), OTHER, {"gpt": (4, 2), "other": (0, 2)}),
        (("job gpt weight=99", "add 2 slots"), OTHER, {"gpt": (4, 4), "other": (0, 2)}),
        (("job other max=3",), OTHER, {"gpt": (4, 1), "other": (0, 3)}),
        (("end gpt",), OTHER, {"gpt": (4, 0), "other": (0, 2)}),
    ],
    ids=str,
)
def test_changes_are_taken_together(
    world: Planned, changes: tuple[str, ...], job: JobSpec | None, expected: dict[str, tuple[int, int]]
) -> None:
    assert sizes(world, *changes, job=job) == expected


def test_it_says_what_each_job_would_make_of_it(world: Planned) -> None:
    gpt = world.imagine("add 8 slots")["gpt"]
    assert gpt.flops_after / gpt.flops_before == pytest.approx(6 / 4)
    assert gpt.standstill_seconds > 0
    ended = world.imagine("end gpt")["gpt"]
    assert (ended.flops_after, ended.standstill_seconds, ended.reason) == (0.0, 0.0, "it has ended")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ((), 'what-if: want "lose NODE" or "drain NODE", '),
        (("rain",), 'what-if: rain: want "lose NODE" or "drain NODE", '),
        (("lose",), "what-if: lose: want "),
        (("lose n9",), "node: n9: there is no such node; known: n0, n1, n2, n3"),
        (("lose n1", "drain n1"), 'node: n1: it is gone after "lose n1"'),
        (("drain n1", "degrade n1 speed=0.5"), 'node: n1: it is gone after "drain n1"'),
        (("lose domain rack",), "domain: rack: there is no such domain; known: none"),
        (("degrade n1",), "what-if: degrade n1: want "),
        (("degrade n1 speed=2",), "speed: 2: want a number above 0, at most 1"),
        (("degrade n1 slots=7",), "slots: 7: want how many, 1 to 1, or which of 0"),
        (("degrade n9 speed=0.5",), "node: n9: there is no such node; known: n0, n1, n2, n3"),
        (("add 0 slots",), "what-if: add 0 slots: want 1 to 10000"),
        (("add -1 slots",), "what-if: add -1 slots: want "),
        (("end gtp",), "job: gtp: there is no such job; known: gpt"),
        (("end gpt", "job gpt weight=2"), 'job: gpt: it is gone after "end gpt"'),
        (("job gpt weight=-1",), "weight: -1.0: want a number above 0"),
        (("job gpt weight=nan",), "weight: nan: want a number above 0"),
        (("job gpt min=7",), "min: 7: want at most max, which is 6"),
        (("job gpt colour=red",), "what-if: job gpt colour=red: want "),
    ],
    ids=str,
)
def test_what_names_nothing_is_refused_in_one_line(world: Planned, changes: tuple[str, ...], says: str) -> None:
    with pytest.raises(Rejected, match=f"^{re.escape(says)}") as refused:
        world.imagine(*changes)
    assert "\n" not in str(refused.value)


def test_a_job_of_a_name_that_is_in_use_is_refused_as_the_real_one_would_be(world: Planned) -> None:
    with pytest.raises(Rejected, match="name: gpt: a job of this name is running"):
        world.imagine(job=JobSpec("gpt", ("python",), directory="/w"))


def test_a_node_that_no_plan_counts_on_can_not_be_lost() -> None:
    world = Planned(nodes=2)
    world.tell(e.NodeDrained(world.request(), "n1"))
    with pytest.raises(Rejected, match="node: n1: it is drained, and no plan counts on it"):
        world.imagine("lose n1")


def test_the_answer_is_what_comes_true() -> None:
    world = Planned(nodes=6)
    world.train_planned("light", 1, 6)
    world.train_planned("heavy", 1, 4, weight=4.0)
    lost = world.job("heavy").seats[0][0]
    foretold = {name: after for name, (_, after) in sizes(world, f"lose {lost}").items()}
    world.tell(e.NodeSilent(lost, 2.6), e.JobHalted("heavy", 1.1))
    world.answer()
    assert world.sizes() == foretold
    back = {name: after for name, (_, after) in sizes(world, "add 1 slot").items()}
    world.settle()
    world.attach(lost, incarnation="rebooted")
    world.answer()
    world.settle()
    assert world.sizes() == back
    assert sum(len(n.slots) for n in world.core.problem.nodes) == 6


@pytest.mark.parametrize("change", ["drain n2", "degrade n2 speed=0.25", "degrade n2 slots=1"])
def test_what_an_operator_may_do_comes_true(change: str) -> None:
    world = Planned(nodes=3, slots=2)
    world.train_planned("light", 1, 6)
    world.train_planned("heavy", 1, 3, weight=4.0)
    foretold = {name: (j.size_after, j.reason) for name, j in world.imagine(change).items()}
    if change.startswith("drain"):
        world.tell(e.NodeDrained(world.request(), "n2"))
    else:
        field, _, value = change.rpartition(" ")[2].partition("=")
        asked = DegradeNode("n2", **{field: value})
        fact = commanded(world.state, world.request(), asked, drills_allowed=False)
        assert isinstance(fact, e.NodeDegraded)
        world.tell(fact)
    world.answer()
    assert {name: (len(job.seats), job.seats_reason) for name, job in world.state.jobs.items()} == foretold


def test_a_domain_is_lost_or_drained_as_one() -> None:
    world = Planned(nodes=1)
    for i, domain in enumerate(("left", "left", "right")):
        world.attach(f"in-{i}", domain=domain)
    world.train_planned("gpt", 1, 4)
    assert sizes(world, "lose domain left") == {"gpt": (4, 2)}
    assert sizes(world, "lose in-0", "drain domain left", "add 2 slots") == {"gpt": (4, 4)}
    with pytest.raises(Rejected, match="domain: left: there is no such domain; known: right"):
        world.imagine("lose domain left", "lose domain left")


@pytest.fixture
def pair() -> Planned:
    """Four slots: two of a job of weight 2, two of one of weight 1."""
    made = Planned(nodes=4)
    made.train_planned("heavy", 1, 2, weight=2.0)
    made.train_planned("light", 1, 2)
    return made


def test_a_lost_node_is_made_up_for_by_the_lighter_job(pair: Planned) -> None:
    lost = pair.job("heavy").seats[0][0]
    jobs = pair.imagine(f"lose {lost}")
    assert [(j.job, j.size_before, j.size_after) for j in jobs.values()] == [("heavy", 2, 2), ("light", 2, 1)]
    assert [j.flops_before for j in jobs.values()] == pytest.approx([4 * SLOT, 2 * SLOT])
    assert [j.flops_after for j in jobs.values()] == pytest.approx([4 * SLOT, 1 * SLOT])
    assert jobs["heavy"].reason == "gets 1 slot from light: +2 weighted slots; all it wants"
    assert not any(j.rated for j in jobs.values())


def test_another_weight_alone_makes_nothing_more(pair: Planned) -> None:
    heavy = pair.imagine("job heavy weight=5")["heavy"]
    assert (heavy.flops_before, heavy.flops_after) == pytest.approx((10 * SLOT, 10 * SLOT))
