"""The one way of acting in a vector environment: steps, sums over episodes, saved state, whole episodes."""

from surefoot.envs.acting.episodes import EpisodeRunner, Sums, check_goals, goals_given, half_range, knows, native_sums
from surefoot.envs.acting.problem import check_rows, check_spec, spec_of
from surefoot.envs.acting.steps import Acting, Step, Stepping, bad_costs, check_costs, row_seeds, under, waiting_for
from surefoot.envs.acting.sums import EpisodeMeans, RecentEpisodes
from surefoot.envs.acting.team_policy import TeamPolicy, first_memory, for_team
from surefoot.envs.names import short_name
from surefoot.envs.vector import check_spaces, make_vec

__all__ = [
    "Acting",
    "EpisodeMeans",
    "EpisodeRunner",
    "RecentEpisodes",
    "Step",
    "Stepping",
    "Sums",
    "TeamPolicy",
    "bad_costs",
    "check_costs",
    "check_goals",
    "check_rows",
    "check_spaces",
    "check_spec",
    "first_memory",
    "for_team",
    "goals_given",
    "half_range",
    "knows",
    "make_vec",
    "native_sums",
    "row_seeds",
    "short_name",
    "spec_of",
    "under",
    "waiting_for",
]
