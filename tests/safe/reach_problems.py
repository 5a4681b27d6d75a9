"""What tests of reachability share."""

from surefoot.safe.reachability import (
    closed_forms,
)


def braking_truth(grid):
    return closed_forms.double_integrator(*grid.states().unbind(-1)).reshape(grid.shape)
