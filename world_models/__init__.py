"""Models of the world behind one protocol, learned or exact, and the planners that use them."""

from surefoot.world_models.chunk_model import ChunkModel
from surefoot.world_models.dynamics import Dynamics, Outcome, StepNoise
from surefoot.world_models.ensemble.ensemble import GaussianEnsemble
from surefoot.world_models.ensemble.gaussian import Prediction
from surefoot.world_models.tokens.dynamics import TokenDynamics

__all__ = ["ChunkModel", "Dynamics", "GaussianEnsemble", "Outcome", "Prediction", "StepNoise", "TokenDynamics"]
