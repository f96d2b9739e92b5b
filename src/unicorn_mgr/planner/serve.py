"""The planner as a process of its own: a line of JSON in, a line of JSON out.

So a solver that hangs or crashes takes nobody along, and planning takes no time of the coordinator's
loop.  It is started by the coordinator and ends when its standard input does.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from pydantic import TypeAdapter

from unicorn_mgr.planner import ilp
from unicorn_mgr.planner.choices import sizes_of
from unicorn_mgr.planner.planner import plan
from unicorn_mgr.planner.problem import Plan, Problem
from unicorn_mgr.planner.sizing import sized
from unicorn_mgr.planner.table import Foreseen


@dataclass(frozen=True, slots=True)
class Question:
    """A problem, and how long its answer may take."""

    problem: Problem
    limit: float
    sizes_only: bool = False
    """Sizes for the table of next events; places are found when they are needed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One of the two."""

    plan: Plan | None = None
    foreseen: Foreseen | None = None


QUESTION = TypeAdapter(Question)
ANSWER = TypeAdapter(Answer)


def answer(question: Question, solver: str) -> Answer:
    """The answer."""
    if not question.sizes_only:
        return Answer(plan=plan(question.problem, question.limit, solver))
    sizes = sizes_of(question.problem)
    return Answer(foreseen=Foreseen.of(sizes, sized(sizes.knapsack, question.limit, solver, sizes.least)))


def main() -> None:
    """Answer until nobody asks any more."""
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    # Without any, the bounds alone answer, with their gap.
    solver = next(iter(ilp.available()), "cbc")
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(ANSWER.dump_json(answer(QUESTION.validate_json(line), solver)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
