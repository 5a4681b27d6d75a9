"""Planners: actions by looking ahead in a world, batched over states, with futures and risk."""

import dataclasses
from typing import Any

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.options import respelled
from surefoot.world_models.planners.base import Planner
from surefoot.world_models.planners.cem import CEM
from surefoot.world_models.planners.gorp import GORP
from surefoot.world_models.planners.gumbel import Gumbel
from surefoot.world_models.planners.icem import ICEM
from surefoot.world_models.planners.ilqr import ILQR
from surefoot.world_models.planners.mppi import MPPI
from surefoot.world_models.planners.policy import PlannerPolicy
from surefoot.world_models.planners.shooting import GradientShooting

__all__ = [
    "CEM",
    "GORP",
    "ICEM",
    "ILQR",
    "MPPI",
    "PLANNERS",
    "GradientShooting",
    "Gumbel",
    "Planner",
    "PlannerPolicy",
    "make_planner",
]

PLANNERS: dict[str, Any] = {
    "cem": CEM,
    "icem": ICEM,
    "mppi": MPPI,
    "ilqr": ILQR,
    "shooting": GradientShooting,
    "gorp": GORP,
    "gumbel": Gumbel,
}
"""Name on the command line -> settings."""


def make_planner(name: str, **settings: Any) -> Planner:
    """The planner of this name with these settings; those that are None are its own.

    Raises:
        ConfigError: no such planner, a setting that it has not, or one out of range.
    """
    if name not in PLANNERS:
        raise ConfigError(f"there is no planner {name!r}; {nearest(name, list(PLANNERS))}")
    known = [field.name for field in dataclasses.fields(PLANNERS[name])]
    given = respelled({key: value for key, value in settings.items() if value is not None}, known)
    for key in given:
        if key not in known:
            raise ConfigError(f"the planner {name} has no setting {key!r}; its settings are {', '.join(known)}")
    planner: Planner = PLANNERS[name](**given)
    return planner
