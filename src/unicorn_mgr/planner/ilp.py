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

from unicorn_mgr.planner.knapsack import Knapsack

SCALE = 1e6
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


def best_sizes(knapsack: Knapsack, limit: float, solver: str = "cbc") -> Found:
    """The knapsack as an integer programme: a binary a choice, a row a capacity.

    `limit` is seconds for the solver itself.  Raises SolverFailed.
    """
    model = _Model(knapsack, pulp.LpBinary)
    proven = solved(model.programme, solver, limit)
    return Found(tuple(_index_taken(mine) for mine in model.taken), proven)


def row_prices(knapsack: Knapsack, limit: float) -> tuple[float, ...]:
    """Prices of several rows: the duals of the linear relaxation.  Raises SolverFailed."""
    model = _Model(knapsack, pulp.LpContinuous)
    if not solved(model.programme, "cbc", limit):
        raise SolverFailed("the linear relaxation was not solved in time")
    # Solvers differ in the sign of a dual; a slot is never worth less than nothing.
    return tuple(abs(row.pi or 0.0) / model.scale for row in model.rows)


class _Model:
    """The programme, its variables by job, and its rows."""

    def __init__(self, knapsack: Knapsack, kind: str) -> None:
        self.programme = pulp.LpProblem("sizes", pulp.LpMaximize)
        self.scale = scale([c.value for choices in knapsack.jobs for c in choices])
        self.taken: list[list[pulp.LpVariable]] = []
        objective = []
        weights: list[list[tuple[pulp.LpVariable, int]]] = [[] for _ in knapsack.capacities]
        for job, choices in enumerate(knapsack.jobs):
            mine = [self.programme.add_variable(f"y{job}_{i}", 0, 1, kind) for i in range(len(choices))]
            self.taken.append(mine)
            self.programme.addConstraint(pulp.LpAffineExpression([(y, 1) for y in mine]) == 1)
            for y, choice in zip(mine, choices, strict=True):
                objective.append((y, choice.value * self.scale))
                for row in choice.rows:
                    weights[row].append((y, choice.size))
        self.programme.setObjective(pulp.LpAffineExpression(objective))
        self.rows = [
            pulp.LpAffineExpression(row) <= capacity for row, capacity in zip(weights, knapsack.capacities, strict=True)
        ]
        for row in self.rows:
            self.programme.addConstraint(row)


def scale(values: Sequence[float]) -> float:
    """What makes the greatest of these about a million."""
    largest = max((abs(v) for v in values), default=0.0)
    return SCALE / largest if largest else 1.0


def solved(programme: pulp.LpProblem, solver: str, limit: float) -> bool:
    """Whether the values that the variables now have are proven best.  Raises SolverFailed."""
    try:
        programme.solve(_solver(solver, limit))
    except (pulp.PulpError, OSError, ValueError, ArithmeticError) as error:
        raise SolverFailed(f"{solver}: {error}") from error
    if programme.sol_status == pulp.LpSolutionInfeasible:
        raise Infeasible(f"{solver}: infeasible")
    if programme.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        raise SolverFailed(f"{solver}: {pulp.LpSolution[programme.sol_status]}")
    return bool(programme.sol_status == pulp.LpSolutionOptimal)


def _solver(name: str, limit: float) -> pulp.LpSolver:
    options = {"msg": False, "threads": 1, "timeLimit": limit, "gapRel": 0.0}
    if name == "highs":
        return pulp.HiGHS(**options)
    if name == "cbc":
        # The one that PuLP brings along, by its path: the class that knows it is to be removed.
        path = getattr(getattr(pulp, "PULP_CBC_CMD", None), "pulp_cbc_path", None)
        return pulp.COIN_CMD(path=path, **options)
    raise SolverFailed(f"{name}: there is no such solver; known: {', '.join(SOLVERS)}")


def _index_taken(mine: Sequence[pulp.LpVariable]) -> int:
    values = [y.value() or 0.0 for y in mine]
    return max(range(len(mine)), key=lambda i: values[i])
