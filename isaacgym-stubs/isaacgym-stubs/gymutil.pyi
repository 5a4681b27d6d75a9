import argparse
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from .gymapi import Env, Gym, SimParams, Transform, Viewer

class LineGeometry:
    def vertices(self) -> NDArray[Any]: ...
    def colors(self) -> NDArray[Any]: ...
    def num_lines(self) -> int: ...
    def instance_verts(self, pose: Transform | None = ...) -> NDArray[Any]: ...

class AxesGeometry(LineGeometry):
    def __init__(self, scale: float = ..., pose: Transform | None = ...) -> None: ...

class WireframeBoxGeometry(LineGeometry):
    def __init__(
        self,
        xdim: float = ...,
        ydim: float = ...,
        zdim: float = ...,
        pose: Transform | None = ...,
        color: tuple[float, float, float] | None = ...,
    ) -> None: ...

class WireframeSphereGeometry(LineGeometry):
    def __init__(
        self,
        radius: float = ...,
        num_lats: int = ...,
        num_lons: int = ...,
        pose: Transform | None = ...,
        color: tuple[float, float, float] | None = ...,
        color2: tuple[float, float, float] | None = ...,
    ) -> None: ...

def draw_lines(geom: LineGeometry, gym: Gym, viewer: Viewer, env: Env, pose: Transform) -> None: ...
def parse_device_str(device_str: str) -> tuple[str, int]: ...
def parse_sim_config(sim_cfg: dict[str, Any], sim_options: SimParams) -> None: ...
def parse_arguments(
    description: str = ...,
    headless: bool = ...,
    no_graphics: bool = ...,
    custom_parameters: Sequence[dict[str, Any]] = ...,
) -> argparse.Namespace: ...
