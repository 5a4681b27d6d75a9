"""Hamilton-Jacobi reachability on grids: the largest safe set, to check learned ones against and to filter actions."""

from surefoot.safe.reachability.grid import Axis, Grid, GridValue
from surefoot.safe.reachability.measures import Comparison, compare
from surefoot.safe.reachability.solver import Problem, Solution, solve
from surefoot.safe.reachability.tabular import reverse_expectile, solve_expectile

__all__ = [
    "Axis",
    "Comparison",
    "Grid",
    "GridValue",
    "Problem",
    "Solution",
    "compare",
    "reverse_expectile",
    "solve",
    "solve_expectile",
]
