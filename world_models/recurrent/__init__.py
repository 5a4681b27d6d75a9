"""Recurrent state-space models (Dreamer's), and a policy that remembers by one."""

from surefoot.world_models.recurrent.recurrent import (
    ImageDecoder,
    Numbers,
    RecurrentModel,
    VectorDecoder,
    Window,
    window_of,
)

__all__ = ["ImageDecoder", "Numbers", "RecurrentModel", "VectorDecoder", "Window", "window_of"]
