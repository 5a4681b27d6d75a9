"""Models of the world behind one protocol, learned or exact, and the planners that use them."""

from surefoot.world_models.dynamics import Dynamics, Outcome, StepNoise

__all__ = ["Dynamics", "Outcome", "StepNoise"]
