"""The planner as a process of its own: a line of JSON in, a line of JSON out.

So a solver that hangs or crashes takes nobody along, and planning takes no time of the coordinator's
loop.  It is started by the coordinator and ends when its standard input does.

A problem is answered with its plan.  Or it is told once, and what may happen next is then answered one
event at a time: whoever asks may tell a newer problem at any time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from unicorn_mgr.planner import ilp
from unicorn_mgr.planner.choices import sizes_of
from unicorn_mgr.planner.planner import plan
from unicorn_mgr.planner.problem import Plan, Problem
from unicorn_mgr.planner.sizing import sized
from unicorn_mgr.planner.table import Foreseen, Situation, Table


@dataclass(frozen=True, slots=True)
class Question:
    """How long an answer may take, and to what."""

    limit: float
    problem: Problem | None = None
    """None: the one that was told before."""
    foresee: bool = False
    """Sizes for one more of the situations that may follow from it; places are found when they are needed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan; or sizes and what for; or nothing: all has been foreseen."""

    plan: Plan | None = None
    foreseen: Foreseen | None = None
    situation: Situation = ""


QUESTION = TypeAdapter(Question)
ANSWER = TypeAdapter(Answer)


@dataclass(slots=True)
class Solving:
    """Answers one question after the other."""

    solver: str
    _followers: Iterator[tuple[Situation, Problem]] = field(default_factory=lambda: iter(()))

    def answer(self, question: Question) -> Answer:
        """The answer."""
        if question.problem is not None:
            if not question.foresee:
                return Answer(plan(question.problem, question.limit, self.solver))
            self._followers = Table.of(question.problem).missing()
        for situation, problem in self._followers:
            sizes = sizes_of(problem)
            sizing = sized(sizes.knapsack, question.limit, self.solver, sizes.least)
            return Answer(foreseen=Foreseen.of(sizes, sizing), situation=situation)
        return Answer()


def main() -> None:
    """Answer until nobody asks any more."""
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    # Without any, the bounds alone answer, with their gap.
    solving = Solving(next(iter(ilp.available()), "cbc"))
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(ANSWER.dump_json(solving.answer(QUESTION.validate_json(line))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
