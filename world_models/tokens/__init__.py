"""Trajectories as tokens: bins, a transformer over them, its dynamics, and beam search in it."""

from surefoot.world_models.tokens.tokens import LAWS, Bins, drawn, uniform_of, without_tail

__all__ = ["LAWS", "Bins", "drawn", "uniform_of", "without_tail"]
