"""Policies of ours as LeRobot policies: import this package, and LeRobot knows the type `surefoot`.

    from surefoot.interop.lerobot_policy import SurefootPolicy
    SurefootPolicy.of(surefoot.load_policy("RUN")).save_pretrained("folder")

`folder` then holds what LeRobot's own policies have there: `config.json`, `model.safetensors` and two processors, which
only move tensors, since normaliser and bounds are the policy's own. LeRobot's commands find the type where they are
given to import it: `lerobot-eval --policy.path=folder --env.discover_packages_path=surefoot.interop.lerobot_policy ...`
(a package, because that option looks for modules inside). Needs `lerobot` (0.4.4 was tried), in an environment of its
own: it asks for other versions than this library.

Source: huggingface/lerobot, docs/source/bring_your_own_policies.mdx.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.optim.optimizers import AdamConfig
from lerobot.policies.pretrained import PreTrainedPolicy
from lerobot.processor import (
    AddBatchDimensionProcessorStep,
    DeviceProcessorStep,
    PolicyProcessorPipeline,
    RenameObservationsProcessorStep,
)
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action
from lerobot.utils.constants import (
    ACTION,
    OBS_ENV_STATE,
    OBS_IMAGE,
    OBS_IMAGES,
    OBS_STATE,
    POLICY_POSTPROCESSOR_DEFAULT_NAME,
    POLICY_PREPROCESSOR_DEFAULT_NAME,
)
from torch import Tensor

from surefoot.core.actors.memory import DRAWS, GOAL, TASK, Memory
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.spec import BYTES, Array
from surefoot.core.policy.policy import Policy

NAME = "surefoot"
TOLD = {GOAL: "observation.goal", TASK: "observation.task_vector"}
"""What a policy is asked for -> the batch's key of it, (B, G) in the units of observations, or (B, D)."""


@PreTrainedConfig.register_subclass(NAME)
@dataclasses.dataclass
class SurefootConfig(PreTrainedConfig):
    """LeRobot's configuration of a policy of ours."""

    description: str = ""  # JSON of `Policy.description`: enough, with the tensors, to build it
    cameras: dict[str, str] = dataclasses.field(default_factory=dict)  # the policy's key of an image -> LeRobot's

    @property
    def observation_delta_indices(self) -> None:
        """None: a policy remembers by itself what it needs."""
        return

    @property
    def action_delta_indices(self) -> None:
        """None: it is not trained here."""
        return

    @property
    def reward_delta_indices(self) -> None:
        """None."""
        return

    def get_optimizer_preset(self) -> AdamConfig:
        """LeRobot asks for one; policies are trained by `surefoot train`."""
        return AdamConfig()

    def get_scheduler_preset(self) -> None:
        """None."""
        return

    def validate_features(self) -> None:
        """Nothing beyond what the description says."""


class SurefootPolicy(PreTrainedPolicy):
    """A policy of ours with LeRobot's interface; observations and actions are in the environment's units."""

    config_class = SurefootConfig
    name = NAME

    def __init__(self, config: SurefootConfig, **unused: Any) -> None:
        """Build the policy that the configuration describes; its weights come from `from_pretrained`.

        Raises:
            CheckpointError: there is no description, or one that is not a policy's.
        """
        super().__init__(config)
        self.policy = _built(config.description)
        self.reset()

    @classmethod
    def of(cls, policy: Policy, device: str = "cpu", cameras: Mapping[str, str] | None = None) -> SurefootPolicy:
        """A copy of a policy.

        Args:
            policy: of one vector, of images, or of vectors and images.
            device: LeRobot's word for where it acts.
            cameras: the policy's key of each image -> LeRobot's; None: observation.image of a single one,
                observation.images.KEY of several.

        Raises:
            ConfigError: it needs rewards, which LeRobot's loop does not tell it, reads images that LeRobot does not
                give (stacked frames), or `cameras` does not name its images.
        """
        if policy.needs_outcomes:
            raise ConfigError("LeRobot's loop tells a policy no rewards, and this one's next action depends on them")
        images = {key: array for key, array in policy.arrays.items() if array.image}
        if cameras is None:
            cameras = {key: OBS_IMAGE if len(images) == 1 else f"{OBS_IMAGES}.{key}" for key in images}
        if set(cameras) != set(images):
            raise ConfigError(
                f"cameras names {', '.join(cameras) or 'nothing'}, and the policy's images are "
                f"{', '.join(images) or 'none'}: give each of them LeRobot's key, such as {OBS_IMAGES}.top"
            )
        for key, array in images.items():
            if len(array.shape) > 3:
                raise ConfigError(
                    f"{key} is {list(array.shape)}, stacked frames, and LeRobot gives one picture of a camera at a "
                    "time: train on single frames, with algo.history= where the past matters"
                )
        width = sum(array.shape[0] for array in policy.arrays.values() if not array.image)
        features = {OBS_STATE: PolicyFeature(FeatureType.STATE, (width,))} if width else {}
        for name, value in policy.begin(1).items():
            if name in TOLD:
                features[TOLD[name]] = PolicyFeature(FeatureType.STATE, (value.shape[1],))
        for key, array in images.items():
            features[cameras[key]] = PolicyFeature(FeatureType.VISUAL, array.image_size)
        actions = {ACTION: PolicyFeature(FeatureType.ACTION, (policy.action_dim,))}
        description = json.dumps(policy.description())
        given: dict[str, Any] = {"input_features": features, "output_features": actions, "cameras": dict(cameras)}
        made = cls(SurefootConfig(device=device, description=description, **given))
        made.policy.load_state_dict(policy.state_dict())
        return made

    def _save_pretrained(self, save_directory: pathlib.Path) -> None:
        """Write the processors too: LeRobot's commands read them from the policy's folder."""
        super()._save_pretrained(save_directory)
        for processor in make_surefoot_pre_post_processors(self.config):
            processor.save_pretrained(save_directory)

    @classmethod
    def _load_as_safetensor(cls, model: Any, model_file: str, map_location: str, strict: bool) -> Any:
        """Read all weights or none: LeRobot's own default passes over what is missing."""
        try:
            loaded = super()._load_as_safetensor(model, model_file, map_location, True)
        except RuntimeError as error:
            raise CheckpointError(f"{model_file}: is not of the policy that config.json describes ({error})") from error
        return loaded

    def reset(self) -> None:
        """Begin an episode in every row."""
        self._memory: Any = None
        self._chunks = 0  # that were predicted with noise of their own

    def get_optim_params(self) -> Any:
        """Its parameters."""
        return self.parameters()

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, None]:
        """(B, A) actions of the batch are compared with the recorded ones: the mean squared error."""
        return (self.policy(self._observed(batch)[0]) - batch[ACTION]).square().mean(), None

    @torch.no_grad()
    def select_action(self, batch: dict[str, Tensor], noise: Tensor | None = None, **unused: Any) -> Tensor:
        """(B, A) actions of this step, and the memory of the rows continues."""
        observed, rows = self._observed(batch)
        if self._memory is None:
            self._memory = self.policy.begin(rows)
        self._memory = _with_told(self._memory, batch)
        actions, self._memory = self.policy.act(observed, self._memory, noise)
        return actions

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Tensor], noise: Tensor | None = None, **unused: Any) -> Tensor:
        """(B, C, A) actions of the next C steps, if it plans chunks; C is 1 of others.

        Nothing is remembered but the number of calls since `reset`: a policy that samples draws other noise in each,
        the first as its first `select_action` does.
        """
        observed, rows = self._observed(batch)
        actor, memory = self.policy.actor, _with_told(self.policy.begin(rows), batch)
        if noise is None and self.policy.always_samples:
            noise, _ = self.policy._drawn(rows, {DRAWS: torch.tensor([[0, self._chunks]])})
            noise, self._chunks = noise.to(self.policy.action_low.device), self._chunks + 1
        if not isinstance(actor, ChunkActor) or actor.inner.has_memory:
            return self.policy.act(observed, memory, noise)[0].unsqueeze(1)
        planned = actor.plan(self.policy.read(observed), noise).clamp(-1, 1)
        return self.policy._in_units(planned)

    def _observed(self, batch: dict[str, Tensor]) -> tuple[Any, int]:
        """What the policy reads of a batch, and its rows: one vector, or arrays by key."""
        if self.policy.encoder is None:
            states = _states(batch)
            return states, len(states)
        vectors = {key: array.shape[0] for key, array in self.policy.arrays.items() if not array.image}
        found: dict[str, Tensor] = {}
        if vectors:
            states = _states(batch)
            if states.shape[-1] != sum(vectors.values()):
                raise ConfigError(
                    f"{OBS_STATE} and {OBS_ENV_STATE} have {states.shape[-1]} numbers, and the policy reads "
                    f"{' and '.join(f'{count} of {key}' for key, count in vectors.items())}"
                )
            found = dict(zip(vectors, states.split(list(vectors.values()), -1), strict=True))
        for key, name in self.config.cameras.items():
            if name not in batch:
                raise ConfigError(f"a batch has no {name!r} for the policy's {key!r}, but {', '.join(sorted(batch))}")
            found[key] = _picture(batch[name], self.policy.arrays[key], name)
        return found, len(next(iter(found.values())))


def _with_told(memory: Memory, batch: Mapping[str, Tensor]) -> Memory:
    """The memory with the goals or tasks of a batch; where it has none, those of the policy itself stay."""
    found = {name: batch[key].to(memory[name]) for name, key in TOLD.items() if name in memory and key in batch}
    for name, value in found.items():
        if value.shape != memory[name].shape:
            raise ConfigError(f"{TOLD[name]} is {list(value.shape)}, and the policy reads {list(memory[name].shape)}")
    return {**memory, **found}


def _picture(image: Tensor, array: Array, name: str) -> Tensor:
    """(B, *shape) in the policy's own range and dtype of LeRobot's (B, C, H, W) in [0, 1]."""
    if image.shape[1:] != array.image_size:
        raise ConfigError(
            f"{name} is {list(image.shape[1:])} (channels, height, width), and the policy reads "
            f"{list(array.image_size)}: let the environment give pictures of that size"
        )
    low, high = array.range or BYTES
    picture = (image * (high - low) + low).clamp(low, high)
    if array.dtype == "uint8":
        picture = picture.round().to(torch.uint8)
    if len(array.shape) == 2:
        return picture.squeeze(1)
    return picture.movedim(1, -1) if array.channels_last else picture


def _states(batch: dict[str, Tensor]) -> Tensor:
    """(B, O): the robot's state and, where there is one, the environment's."""
    held = [batch[key] for key in (OBS_STATE, OBS_ENV_STATE) if key in batch]
    if not held:
        raise ConfigError(f"a batch has neither {OBS_STATE!r} nor {OBS_ENV_STATE!r}: {', '.join(sorted(batch))}")
    return torch.cat([one.float() for one in held], -1)


def _built(description: str) -> Policy:
    try:
        policy = Policy.from_description(json.loads(description))
    except (KeyError, TypeError, ValueError, RecursionError, ConfigError) as error:
        raise CheckpointError(f"config.json: its description is not that of a surefoot policy ({error!r})") from error
    return policy.eval().requires_grad_(False)


def make_surefoot_pre_post_processors(config: SurefootConfig, dataset_stats: Any = None) -> tuple[Any, Any]:
    """LeRobot's processors: nothing is normalised, since the policy does that itself."""
    steps = [
        RenameObservationsProcessorStep(rename_map={}),
        AddBatchDimensionProcessorStep(),
        DeviceProcessorStep(device=config.device),
    ]
    before = PolicyProcessorPipeline(steps=steps, name=POLICY_PREPROCESSOR_DEFAULT_NAME)
    after = PolicyProcessorPipeline(
        steps=[DeviceProcessorStep(device="cpu")],
        name=POLICY_POSTPROCESSOR_DEFAULT_NAME,
        to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action,
    )
    return before, after
