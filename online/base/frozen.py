"""A policy that stays as it is while another learns to correct it: its head as an option, and its weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from surefoot.core.actors.actor import Actor, actor_class
from surefoot.core.base.described import as_argument
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import algorithm_of, require
from surefoot.core.engine.agent import Agent
from surefoot.core.engine.encoder_config import FOLLOWED, EncoderConfig, without_file


def check_frozen(config: EncoderConfig) -> None:
    """Refuse that the encoder is trained, by whose features a policy acts that stays as it is."""
    why = "false: the policy that it starts from reads these features, and stays as it is"
    require(not config.encoder_trains, algorithm_of(config), "encoder_trains", config.encoder_trains, why)


def described(head: Actor, width: int) -> str:
    """A head that gives `width` numbers, as the text of an option."""
    return json.dumps({"actor": head.kind, "base_dim": width, **head.description()}, sort_keys=True)


def head_of(text: str, observation_dim: int, name: str) -> tuple[Actor, int]:
    """The head of `described`, its weights drawn anew, and how many numbers it gives.

    Raises:
        ConfigError: the text describes none; `name` is the algorithm's.
    """
    try:
        options = json.loads(text)
        width = int(options["base_dim"])
        return actor_class(options["actor"]).from_description(observation_dim, width, options), width
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{name}.base is no description of a head ({error!r}): leave it out, and it follows init="
        ) from error


def seen_as(cls: type[Agent], config: Mapping[str, Any], source: Agent) -> dict[str, Any]:
    """Options of the encoder, which are the base's; none where it has none.

    Raises:
        ConfigError: the config asks for another; the base reads maps of images, and not features.
    """
    if source.encoder is None or not isinstance(source.config, EncoderConfig):
        return {}
    if source.encoder.maps:
        raise ConfigError(
            f"{cls.name} reads features of images, and the policy of {source.name} reads their maps: start from a "
            "clone by bc, flow_bc or diffusion_bc"
        )
    usual, of_base = cls.Config(), without_file(vars(source.config))
    for name in FOLLOWED:
        if as_argument(config.get(name, of_base[name])) not in (of_base[name], getattr(usual, name)):
            raise ConfigError(f"{cls.name}.{name} is {config[name]!r}, and the base's {of_base[name]!r}: leave it out")
    return {name: of_base[name] for name in FOLLOWED}


def take_base(agent: Any, source: Agent, head: Actor) -> list[str]:
    """Copy a head's weights into `agent.base`; names of what came along.

    Raises:
        ConfigError: the head is another than the agent was built for.
    """
    theirs, mine = head.state_dict(), agent.base.state_dict()
    same = {n: v.shape for n, v in theirs.items()} == {n: v.shape for n, v in mine.items()}
    if head.kind != agent.base.kind or not same:
        raise ConfigError(
            f"the policy of {source.name} is a {head.kind} head, and not the one that {agent.name} is configured with: "
            "leave algo.base out"
        )
    agent.base.load_state_dict(copy.deepcopy(theirs))
    return ["base"]
