"""Policies of ours as LeRobot policies: import this package, and LeRobot knows the type `surefoot`.

    from surefoot.tools.lerobot_policy import SurefootPolicy
    SurefootPolicy.of(surefoot.load_policy("RUN")).save_pretrained("folder")

`folder` then holds what LeRobot's own policies have there: `config.json`, `model.safetensors` and two processors, which
only move tensors, since normaliser and bounds are the policy's own. LeRobot's commands find the type where they are
told to import it: `lerobot-eval --policy.path=folder --env.discover_packages_path=surefoot.tools.lerobot_policy ...`
(a package, because that option looks for modules inside). Needs `lerobot` (0.4.4 was tried), in an environment of its
own: it asks for other versions than this library.

Source: huggingface/lerobot, docs/source/bring_your_own_policies.mdx.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
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
    OBS_STATE,
    POLICY_POSTPROCESSOR_DEFAULT_NAME,
    POLICY_PREPROCESSOR_DEFAULT_NAME,
)
from torch import Tensor

from surefoot.core.actor import actor_class
from surefoot.core.errors import CheckpointError, ConfigError
from surefoot.core.memory_actors import ChunkActor
from surefoot.core.normalizer import Normalizer
from surefoot.core.policy import Policy

NAME = "surefoot"


@PreTrainedConfig.register_subclass(NAME)
@dataclasses.dataclass
class SurefootConfig(PreTrainedConfig):
    """LeRobot's configuration of a policy of ours."""

    description: str = ""  # JSON of `Policy.description`: enough, with the tensors, to build it

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
    def of(cls, policy: Policy, device: str = "cpu") -> SurefootPolicy:
        """A copy of a policy of one vector.

        Raises:
            ConfigError: it reads images or several arrays, or needs rewards, which LeRobot's loop does not tell it.
        """
        if policy.encoder is not None or policy.needs_outcomes:
            raise ConfigError("LeRobot's loop gives this adapter states alone; the policy reads images or rewards")
        features = {OBS_STATE: PolicyFeature(FeatureType.STATE, (policy.observation_dim,))}
        actions = {ACTION: PolicyFeature(FeatureType.ACTION, (policy.action_dim,))}
        description = json.dumps(policy.description())
        made = cls(
            SurefootConfig(input_features=features, output_features=actions, device=device, description=description)
        )
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

    def get_optim_params(self) -> Any:
        """Its parameters."""
        return self.parameters()

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, None]:
        """(B, A) actions of the batch are compared with the recorded ones: the mean squared error."""
        return (self.policy(_states(batch)) - batch[ACTION]).square().mean(), None

    @torch.no_grad()
    def select_action(self, batch: dict[str, Tensor], noise: Tensor | None = None, **unused: Any) -> Tensor:
        """(B, A) actions of this step, and the memory of the rows goes on."""
        states = _states(batch)
        if self._memory is None:
            self._memory = self.policy.begin(len(states))
        actions, self._memory = self.policy.act(states, self._memory, noise)
        return actions

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Tensor], noise: Tensor | None = None, **unused: Any) -> Tensor:
        """(B, C, A) actions of the next C steps, if it plans chunks; C is 1 of others. Nothing is remembered."""
        states = _states(batch)
        actor = self.policy.actor
        if not isinstance(actor, ChunkActor) or actor.inner.has_memory:
            return self.policy.act(states, self.policy.begin(len(states)), noise)[0].unsqueeze(1)
        planned = actor.plan(self.policy.read(states), noise).clamp(-1, 1)
        return self.policy._in_units(planned)


def _states(batch: dict[str, Tensor]) -> Tensor:
    """(B, O): the robot's state and, where there is one, the environment's."""
    held = [batch[key] for key in (OBS_STATE, OBS_ENV_STATE) if key in batch]
    if not held:
        raise ConfigError(f"a batch has neither {OBS_STATE!r} nor {OBS_ENV_STATE!r}: {', '.join(sorted(batch))}")
    return torch.cat([one.float() for one in held], -1)


def _built(description: str) -> Policy:
    try:
        told = json.loads(description)
        actor = actor_class(told["actor"]).from_description(told["observation_dim"], told["action_dim"], told)
        low, high = (torch.tensor(told[name], dtype=torch.float32) for name in ("action_low", "action_high"))
        normalizer = Normalizer(told["observation_dim"], told.get("observation_limit", float("inf")))
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"config.json: its description is not that of a surefoot policy ({error!r})") from error
    return Policy(actor, normalizer, low, high).eval().requires_grad_(False)


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
