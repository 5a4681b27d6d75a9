from abc import ABC, abstractmethod
from typing import Any

import torch
from isaacgym.gymapi import Gym, Sim, SimParams, Viewer

class Env(ABC):
    device: str
    rl_device: str
    headless: bool
    num_environments: int
    num_agents: int
    num_observations: int
    num_states: int
    num_actions: int
    control_freq_inv: int
    clip_obs: float
    clip_actions: float
    def __init__(
        self, config: dict[str, Any], rl_device: str, sim_device: str, graphics_device_id: int, headless: bool
    ) -> None: ...
    @property
    def observation_space(self) -> Any: ...  # a Box of the old package gym
    @property
    def action_space(self) -> Any: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def num_acts(self) -> int: ...
    @property
    def num_obs(self) -> int: ...

class VecTask(Env):
    gym: Gym
    sim: Sim
    sim_params: SimParams
    viewer: Viewer | None
    cfg: dict[str, Any]
    obs_buf: torch.Tensor  # (envs, observations) float32
    states_buf: torch.Tensor  # (envs, states) float32
    rew_buf: torch.Tensor  # (envs,) float32
    reset_buf: torch.Tensor  # (envs,) int64: 1 where the next step resets
    timeout_buf: torch.Tensor  # (envs,) int64
    progress_buf: torch.Tensor  # (envs,) int64: steps of the episode
    randomize_buf: torch.Tensor  # (envs,) int64
    extras: dict[str, Any]  # 'time_outs': (envs,)
    obs_dict: dict[str, torch.Tensor]
    def __init__(
        self,
        config: dict[str, Any],
        rl_device: str,
        sim_device: str,
        graphics_device_id: int,
        headless: bool,
        virtual_screen_capture: bool = ...,
        force_render: bool = ...,
    ) -> None: ...
    def allocate_buffers(self) -> None: ...
    def create_sim(
        self, compute_device: int, graphics_device: int, physics_engine: int, sim_params: SimParams
    ) -> Sim: ...
    def get_state(self) -> torch.Tensor: ...
    @abstractmethod
    def pre_physics_step(self, actions: torch.Tensor) -> None: ...
    @abstractmethod
    def post_physics_step(self) -> None: ...
    def step(
        self, actions: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, dict[str, Any]]: ...
    def zero_actions(self) -> torch.Tensor: ...
    def reset_idx(self, env_ids: torch.Tensor) -> None: ...
    def reset(self) -> dict[str, torch.Tensor]: ...
    def reset_done(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]: ...
    def render(self, mode: str = ...) -> Any: ...
    def apply_randomizations(self, dr_params: dict[str, Any]) -> None: ...
