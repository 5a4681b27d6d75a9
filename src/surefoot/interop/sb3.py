"""Policies of stable-baselines3 as policies of ours, with equal actions: PPO, A2C, SAC, TD3, DDPG, DQN of one vector.

A file of stable-baselines3 holds pickled objects: to read it is to execute what whoever wrote it put there. So that
library reads it, and only where the caller says that the file is trusted.
"""

from __future__ import annotations

import os
import pathlib
import zipfile
import zlib
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.actors.greedy_actor import GreedyActor
from surefoot.core.actors.heads import (
    CategoricalActor,
    DeterministicActor,
    MLPActor,
    TanhGaussianActor,
    UnboundedGaussianActor,
)
from surefoot.core.base.errors import CheckpointError, ConfigError, MissingExtraError, nearest
from surefoot.core.base.schema import parse
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy

ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.LeakyReLU: "leaky_relu",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
    nn.Mish: "mish",
}
ALGORITHMS = ("a2c", "ddpg", "dqn", "ppo", "sac", "td3")
CHECKED = 256
"""Observations on which actions are compared."""
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)
"""What python's reader of archives raises of damaged ones; RuntimeError of encrypted ones and unknown compressions."""
LOG_STD = (-20.0, 2.0)
"""Between which SAC's log standard deviation is clipped, and ours of policies read here."""


def load(
    path: str | os.PathLike[str],
    *,
    trust: bool,
    algorithm: str | None = None,
    statistics: str | os.PathLike[str] | None = None,
) -> Policy:
    """The policy in a file that stable-baselines3 saved.

    Args:
        path: the .zip file.
        trust: execute what is pickled in it.
        algorithm: one of `ALGORITHMS`; None: what the file's policy is of.
        statistics: file of `VecNormalize.save`, whose observation statistics the policy was trained with; it is pickled
            too.

    Raises:
        ConfigError: the file is not trusted, or its algorithm is unknown.
        CheckpointError: it is damaged, or its policy is of a kind that can't be had here; the sentence says which.
        MissingExtraError: stable-baselines3 is not installed.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    found = algorithm or _algorithm(path)
    if found not in ALGORITHMS:
        raise ConfigError(f"algorithm {found!r} is not read: {nearest(found, list(ALGORITHMS))}")
    if not trust:
        raise ConfigError(
            f"{path}: files of stable-baselines3 hold pickled objects, and to read one is to execute it; if you trust "
            "whoever wrote it, add --trust (trust=True in python)"
        )
    try:
        import stable_baselines3 as sb3
    except ImportError as error:
        raise MissingExtraError("stable_baselines3", "sb3", f"reading {path.name}") from error
    never: Any = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.2}
    try:
        model = getattr(sb3, found.upper()).load(path, device="cpu", custom_objects=never)
    except Exception as error:  # unpickling raises what it likes
        line = (str(error).splitlines() or [""])[0]
        raise CheckpointError(f"{path}: stable-baselines3 can't read it ({type(error).__name__}: {line})") from error
    normalizer = _normalizer(model, statistics)
    policy = converted(model, normalizer, str(path))
    _compare(model, policy, str(path))
    return policy


def _algorithm(path: pathlib.Path) -> str:
    """What the file says of its policy's class, which is not executed for that."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo("data").file_size > 64 << 20:
                raise ValueError("its description has more than 64 MiB")
            reported = parse(archive.read("data"), f"{path}: its description")
        module = reported["policy_class"].get("__module__", "")
    except (OSError, KeyError, ValueError, AttributeError, TypeError, *DAMAGED) as error:
        raise CheckpointError(f"{path}: is no file of stable-baselines3 ({error})") from error
    named = module.split(".")[1] if module.startswith("stable_baselines3.") else ""
    if named == "td3":
        return "td3"
    if named == "common":  # PPO and A2C share their policies
        return "ppo" if "n_epochs" in reported else "a2c"
    if named in ALGORITHMS:
        return named
    raise CheckpointError(
        f"{path}: its policy is of {module or 'an unknown module'}; name its algorithm: {', '.join(ALGORITHMS)}"
    )


def converted(model: Any, normalizer: Normalizer, name: str) -> Policy:
    """The policy of a model of stable-baselines3.

    Raises:
        CheckpointError: its network, observations or actions are of a kind that is not known.
    """
    policy, space = model.policy, model.action_space
    if not isinstance(model.observation_space, gymnasium.spaces.Box) or len(model.observation_space.shape) != 1:
        raise CheckpointError(f"{name}: observes {model.observation_space}; only one vector can be taken over")
    if getattr(model, "use_sde", False):
        raise CheckpointError(f"{name}: explores by gSDE, whose policy is not taken over; train it without use_sde")
    width = int(model.observation_space.shape[0])
    if isinstance(space, gymnasium.spaces.Discrete):
        body = policy.q_net.q_net if hasattr(policy, "q_net") else _joined(policy)
        layers, activation = _layers(body, name)
        head = GreedyActor if hasattr(policy, "q_net") else CategoricalActor
        actor: MLPActor = head(width, int(space.n), _hidden(layers), activation=activation)
        _fill(actor, layers)
        return Policy.of(actor, normalizer, torch.zeros(int(space.n)), torch.ones(int(space.n)))
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise CheckpointError(f"{name}: acts in {space}; a Discrete or a Box of one dimension can be taken over")
    low, high = (torch.as_tensor(np.asarray(bound, np.float32)) for bound in (space.low, space.high))
    if not bool(torch.isfinite(low).all() and torch.isfinite(high).all()):
        raise CheckpointError(f"{name}: its actions {space} have no finite bounds")
    count = int(space.shape[0])
    if hasattr(policy, "mlp_extractor"):  # PPO, A2C: the mean is in the environment's units, and clipped to its bounds
        layers, activation = _layers(_joined(policy), name)
        middle, half = (high + low) / 2, (high - low) / 2
        weight, bias = layers[-1]
        layers[-1] = (weight / half[:, None], (bias - middle) / half)
        actor = UnboundedGaussianActor(width, count, _hidden(layers), log_std_range=LOG_STD, activation=activation)
        actor.log_std.data.copy_(policy.log_std.detach() - half.log())  # type: ignore[operator, union-attr]
    elif hasattr(policy.actor, "latent_pi"):  # SAC
        body = nn.Sequential(*policy.actor.latent_pi, policy.actor.mu)
        layers, activation = _layers(body, name)
        deviation = policy.actor.log_std
        layers[-1] = tuple(  # type: ignore[assignment]
            torch.cat([mean, other.detach()])
            for mean, other in zip(layers[-1], (deviation.weight, deviation.bias), strict=True)
        )
        actor = TanhGaussianActor(width, count, _hidden(layers), log_std_range=LOG_STD, activation=activation)
    else:  # TD3, DDPG
        layers, activation = _layers(nn.Sequential(*list(policy.actor.mu)[:-1]), name)
        actor = DeterministicActor(width, count, _hidden(layers), activation=activation)
    _fill(actor, layers)
    return Policy.of(actor, normalizer, low, high)


def _joined(policy: Any) -> nn.Sequential:
    return nn.Sequential(*policy.mlp_extractor.policy_net, policy.action_net)


def _hidden(layers: list[tuple[Tensor, Tensor]]) -> tuple[int, ...]:
    return tuple(len(bias) for _, bias in layers[:-1])


def _layers(body: nn.Sequential, name: str) -> tuple[list[tuple[Tensor, Tensor]], str]:
    """Weights and biases of the linear layers, and the activation between them."""
    linear = [part for part in body if isinstance(part, nn.Linear)]
    between = [part for part in body if not isinstance(part, nn.Linear | nn.Identity)]
    kinds = {type(part) for part in between}
    if len(linear) < 2 or len(kinds) != 1 or len(between) != len(linear) - 1 or not kinds <= ACTIVATIONS.keys():
        raise CheckpointError(
            f"{name}: its network is {[type(part).__name__ for part in body]}; linear layers with one of "
            f"{', '.join(kind.__name__ for kind in ACTIVATIONS)} between them can be taken over"
        )
    return [(one.weight.detach(), one.bias.detach()) for one in linear], ACTIVATIONS[kinds.pop()]


def _fill(actor: MLPActor, layers: list[tuple[Tensor, Tensor]]) -> None:
    for (weight, bias), own, shift in zip(layers, actor.mlp.weights, actor.mlp.biases, strict=True):
        own.data.copy_(weight)
        shift.data.copy_(bias)


def _normalizer(model: Any, statistics: str | os.PathLike[str] | None) -> Normalizer:
    """The identity, or what `VecNormalize` kept of observations."""
    width = int(np.prod(model.observation_space.shape or (0,)))
    if statistics is None:
        return Normalizer(width)
    import pickle

    try:
        with open(statistics, "rb") as file:
            held = pickle.load(file)  # trusted, as the file beside it
        mean, variance = np.asarray(held.obs_rms.mean), np.asarray(held.obs_rms.var)
        made = Normalizer(width, float(held.clip_obs))
        made.mean.copy_(torch.as_tensor(mean))
        made.scale.copy_(torch.as_tensor(np.sqrt(variance + held.epsilon)))
    except Exception as error:  # unpickling raises what it likes
        raise CheckpointError(f"{statistics}: holds no statistics of VecNormalize ({error})") from error
    return made


def _compare(model: Any, policy: Policy, name: str) -> None:
    """Make sure that both act alike.

    Raises:
        CheckpointError: they do not.
    """
    rows = np.random.default_rng(0).standard_normal((CHECKED, policy.observation_dim)).astype(np.float32)
    observations = policy.normalizer.inverse(torch.from_numpy(rows))
    seen = policy.normalizer(observations).numpy()  # what stable-baselines3 is given behind VecNormalize
    theirs = np.asarray(model.predict(seen, deterministic=True)[0])
    ours = policy(observations).detach().numpy()
    reach = 1.0 if policy.discrete else max(1.0, float((policy.action_high - policy.action_low).max()))
    apart = np.abs(theirs.reshape(ours.shape).astype(np.float64) - ours).max()
    if apart > 1e-5 * reach:
        raise CheckpointError(f"{name}: its actions differ from stable-baselines3's by up to {apart:.2g}")
