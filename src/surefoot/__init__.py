"""surefoot: classical, offline and safe reinforcement learning for control and robotics."""

__version__ = "0.1.0"
