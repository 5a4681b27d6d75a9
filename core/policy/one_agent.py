"""A shared policy of a team as that of one of its agents, which needs to be given no number of its own."""

from __future__ import annotations

import copy

import torch

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.spec import MASK, Array, Team
from surefoot.core.nn.encoders import Encoder
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy


def of_agent(policy: Policy, team: Team, name: str) -> Policy:
    """The policy with an agent's one-hot number built into the first layer's bias; it acts as the shared one.

    Args:
        policy: shared by the team: its vector ends with the one-hot number.
        team: whose agents it is shared by.
        name: of one of them.

    Returns:
        A policy of the vector without the number (and of the mask of actions, where there is one).

    Raises:
        ConfigError: no such agent; a team of one; a policy whose head is no plain network.
    """
    if name not in team.names:
        raise ConfigError(f"{name!r} is no agent of this team: {nearest(name, team.names)}")
    network = getattr(policy.actor, "mlp", None)
    width = len(policy.normalizer.mean)
    masked = policy.encoder is not None and MASK in policy.encoder.arrays
    plain = isinstance(network, MLP) and network.members is None and (policy.encoder is None or masked)
    if team.agents == 1 or not plain:
        raise ConfigError(
            f"a policy of {name} alone is made of a plain network that {team.agents} agents share, and this is none: "
            "export the policy as it is; of several agents it takes the one-hot number behind the observation"
        )
    assert isinstance(network, MLP)
    own = width - team.agents
    number = torch.zeros(width)
    number[own + team.names.index(name)] = 1.0
    actor, seen = copy.deepcopy(policy.actor), policy.normalizer(number)
    first: MLP = actor.mlp  # type: ignore[assignment]
    weight = first.weights[0].data
    keep = torch.cat([torch.arange(own), torch.arange(width, weight.shape[1])])
    first.biases[0].data += weight[:, own:width] @ seen[own:]
    first.weights[0].data = weight[:, keep].clone()
    normalizer = Normalizer(own, policy.normalizer.limit)
    normalizer.load_state_dict({"mean": policy.normalizer.mean[:own], "scale": policy.normalizer.scale[:own]})
    encoder = None
    if policy.encoder is not None:
        (key,) = policy.encoder.vectors
        encoder = Encoder({**policy.encoder.arrays, key: Array((own,))}, policy.encoder.name)
    return Policy.of(actor, normalizer, policy.action_low, policy.action_high, encoder)
