"""Models of the world behind one protocol, learned or exact, and the planners that use them."""

from surefoot.world_models.chunk_model import ChunkModel
from surefoot.world_models.dynamics import Dynamics, Outcome, StepNoise
from surefoot.world_models.ensemble import GaussianEnsemble, Prediction
from surefoot.world_models.token_dynamics import TokenDynamics

__all__ = ["ChunkModel", "Dynamics", "GaussianEnsemble", "Outcome", "Prediction", "StepNoise", "TokenDynamics"]
