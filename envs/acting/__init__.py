"""The one way of acting in a vector environment: steps, sums over episodes, saved state, whole episodes."""

from surefoot.envs.acting.problem import check_spec, spec_of
from surefoot.envs.acting.steps import Acting, Step, Stepping, bad_costs, row_seeds, under, waiting_for
from surefoot.envs.acting.sums import EpisodeMeans, RecentEpisodes

__all__ = [
    "Acting",
    "EpisodeMeans",
    "RecentEpisodes",
    "Step",
    "Stepping",
    "bad_costs",
    "check_spec",
    "row_seeds",
    "spec_of",
    "under",
    "waiting_for",
]
