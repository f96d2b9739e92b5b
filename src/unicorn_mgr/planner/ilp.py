"""The integer programmes, by PuLP: its own CBC, or HiGHS where that is installed.

The one place that knows PuLP's traps.  A status of "Optimal" also means "stopped at the time limit",
so `sol_status` is read.  CBC gives up improving by less than an absolute increment, so objectives are
scaled to about a million.  A solver is another process (CBC) or a library (HiGHS) that may be missing,
crash, or answer nonsense: whatever it does becomes `SolverFailed`, and what it answers is checked by
the caller against the problem, never believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulp

from unicorn_mgr.planner.deadline import Deadline
from unicorn_mgr.planner.knapsack import Knapsack

SCALE = 1e6
SOLVER_SECONDS_MIN = 0.02
"""Less is not worth starting a solver for."""

HANDLING_SECONDS = 0.01
HANDLING_SHARE = 4.0
"""Of what building takes: for what a solver does without looking at its limit."""

SOLVERS = ("cbc", "highs")


class SolverFailed(Exception):
    """No usable answer: it is missing, crashed, or found nothing in time."""


class Infeasible(SolverFailed):
    """It says that nothing fits."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a solver chose: the index of each job's choice, and whether it proved that nothing is better."""

    chosen: tuple[int, ...]
    proven: bool


def available() -> tuple[str, ...]:
    """Solvers that can be used here, in order of preference: CBC is 4 to 10 times faster on this problem."""
    return tuple(name for name in SOLVERS if _solver(name, 1.0).available())


def best_sizes(knapsack: Knapsack, deadline: Deadline, solver: str = "cbc") -> Found:
    """The knapsack as an integer programme: a binary a choice, a row a capacity.  Raises SolverFailed."""
    programme = Programme("sizes", pulp.LpMaximize, deadline)
    factor = scale([c.value for choices in knapsack.jobs for c in choices])
    taken: list[list[pulp.LpVariable]] = []
    objective = []
    weights: list[list[tuple[pulp.LpVariable, int]]] = [[] for _ in knapsack.capacities]
    for job, choices in enumerate(knapsack.jobs):
        programme.hurry()
        mine = [programme.add_variable(f"y{job}_{i}", 0, 1, pulp.LpBinary) for i in range(len(choices))]
        taken.append(mine)
        programme.addConstraint(pulp.LpAffineExpression([(y, 1) for y in mine]) == 1)
        for y, choice in zip(mine, choices, strict=True):
            objective.append((y, choice.value * factor))
            for row in choice.rows:
                weights[row].append((y, choice.size))
    programme.setObjective(pulp.LpAffineExpression(objective))
    for drawn, capacity in zip(weights, knapsack.capacities, strict=True):
        programme.addConstraint(pulp.LpAffineExpression(drawn) <= capacity)
    proven = programme.solved(solver)
    return Found(tuple(_index_taken(mine) for mine in taken), proven)


def scale(values: Sequence[float]) -> float:
    """What makes the greatest of these about a million."""
    largest = max((abs(v) for v in values), default=0.0)
    return SCALE / largest if largest else 1.0


class Programme(pulp.LpProblem):  # type: ignore[misc]  # PuLP has no types
    """One that is not begun, and not gone on with, if it can't be done in time.

    Writing it, starting a solver and what that does before it looks at its limit take some times what building
    has taken, on whatever machine; so building stops when too little would be left for the rest.
    """

    def __init__(self, name: str, sense: int, deadline: Deadline) -> None:
        super().__init__(name, sense)
        self._began = deadline.left
        self._deadline = deadline

    def hurry(self) -> float:
        """Between two parts of building: the seconds that a solver may have.  Raises SolverFailed."""
        left = self._deadline.left
        seconds = left - HANDLING_SECONDS - HANDLING_SHARE * (self._began - left)
        if seconds < SOLVER_SECONDS_MIN:
            raise SolverFailed("the time was up")
        return seconds

    def solved(self, solver: str) -> bool:
        """Whether the values that the variables now have are proven best.  Raises SolverFailed."""
        limit = self.hurry()
        try:
            self.solve(_solver(solver, limit))
        except (pulp.PulpError, OSError, ValueError, ArithmeticError) as error:
            raise SolverFailed(f"{solver}: {error}") from error
        if self.sol_status == pulp.LpSolutionInfeasible:
            raise Infeasible(f"{solver}: infeasible")
        if self.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            raise SolverFailed(f"{solver}: {pulp.LpSolution[self.sol_status]}")
        return bool(self.sol_status == pulp.LpSolutionOptimal)


def _solver(name: str, limit: float) -> pulp.LpSolver:
    options = {"msg": False, "timeLimit": limit, "gapRel": 0.0}
    if name == "highs":
        return pulp.HiGHS(threads=1, **options)
    if name == "cbc":
        # Not told of threads: even one makes it take its parallel code, which misses a wake-up in about one run
        # of 500 and then stands still for ten seconds, whatever its time limit.
        # The one that PuLP brings along, by its path: the class that knows it is to be removed.
        path = getattr(getattr(pulp, "PULP_CBC_CMD", None), "pulp_cbc_path", None)
        return pulp.COIN_CMD(path=path, **options)
    raise SolverFailed(f"{name}: there is no such solver; known: {', '.join(SOLVERS)}")


def _index_taken(mine: Sequence[pulp.LpVariable]) -> int:
    values = [y.value() or 0.0 for y in mine]
    return max(range(len(mine)), key=lambda i: values[i])
