from typing import Any

from numpy.typing import NDArray

class SubTerrain:
    terrain_name: str
    width: int
    length: int
    vertical_scale: float
    horizontal_scale: float
    height_field_raw: NDArray[Any]  # (width, length) int16, in units of vertical_scale
    def __init__(
        self,
        terrain_name: str = ...,
        width: int = ...,
        length: int = ...,
        vertical_scale: float = ...,
        horizontal_scale: float = ...,
    ) -> None: ...

def random_uniform_terrain(
    terrain: SubTerrain,
    min_height: float,
    max_height: float,
    step: float = ...,
    downsampled_scale: float | None = ...,
) -> SubTerrain: ...
def sloped_terrain(terrain: SubTerrain, slope: float = ...) -> SubTerrain: ...
def pyramid_sloped_terrain(terrain: SubTerrain, slope: float = ..., platform_size: float = ...) -> SubTerrain: ...
def discrete_obstacles_terrain(
    terrain: SubTerrain,
    max_height: float,
    min_size: float,
    max_size: float,
    num_rects: int,
    platform_size: float = ...,
) -> SubTerrain: ...
def wave_terrain(terrain: SubTerrain, num_waves: int = ..., amplitude: float = ...) -> SubTerrain: ...
def stairs_terrain(terrain: SubTerrain, step_width: float, step_height: float) -> SubTerrain: ...
def pyramid_stairs_terrain(
    terrain: SubTerrain, step_width: float, step_height: float, platform_size: float = ...
) -> SubTerrain: ...
def stepping_stones_terrain(
    terrain: SubTerrain,
    stone_size: float,
    stone_distance: float,
    max_height: float,
    platform_size: float = ...,
    depth: float = ...,
) -> SubTerrain: ...
def convert_heightfield_to_trimesh(
    height_field_raw: NDArray[Any],
    horizontal_scale: float,
    vertical_scale: float,
    slope_threshold: float | None = ...,
) -> tuple[NDArray[Any], NDArray[Any]]: ...  # (n, 3) float32 vertices, (m, 3) uint32 triangles
