"""A small stacked Learner of every registered algorithm, with rows to learn from: for tests of all of them."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from acting import Walk
from on_policy_problems import Bandit
from safe_problems import random_dataset

from surefoot.core.engine.agent import Agent, Rule, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.data.choices import CHOICES
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import prepare_without_data
from surefoot.data.store import store_from_dataset
from surefoot.offline import DiscreteCQL
from surefoot.online import spec_of
from surefoot.online.loops.loop import make_loop
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.runs.algorithms import ALGORITHMS

SEEDS = (3, 0)
ROWS, ACTED, FILLED = 8, 32, 6
SMALL: dict[str, Any] = {
    "attribute_heads": 2, "attribute_updates": 2, "attribute_width": 8, "beams": 2, "behavior_updates": 2,
    "behavior_warm_up": 1, "behavior_widths": (8,), "candidates": 2, "context": 6, "critic_hidden": (8, 6),
    "critic_steps": 2, "critics": 3, "deterministic": 6, "diffusion_steps": 3, "discriminator_hidden": (8,),
    "discriminator_rows": 4, "elites": 2, "embedding": 3, "encoder_features": 6, "encoder_hidden": (7,),
    "epochs": 1, "flow_steps": 2, "group": 3, "futures": 2, "gap_draws": 2, "heads": 2, "hidden": (8, 6), "horizon": 4,
    "imagine_every": 2, "imagined": 3, "imagined_samples": 2, "initial_steps": 24, "iterations": 2, "kept": 4,
    "latent": 6, "latent_dim": 8, "layers": 1, "length": 3, "measure_every": 4, "minibatches": 2, "model_elites": 2,
    "model_every": 1, "model_hidden": (7, 5), "model_holdout_limit": 16, "model_members": 3, "model_rows": 8,
    "model_updates": 2, "noise_hidden": (8, 6), "num_envs": 2, "pairs": 20, "past": 2, "policy_steps": 1,
    "prior_samples": 2, "recurrent_hidden": 5, "reverse_starts": 10, "rollout_batches": 2, "rollout_length": 2,
    "rollouts": 8, "sampled_actions": 2, "sampler_steps": 2, "samples": 6, "seeker_hidden": (5,),
    "seeker_updates": 2, "transducer": (6, 5), "units": 7, "updates_per_step": 1.0, "vae_hidden": (7, 5),
    "warm_up": 0, "width": 8, "windows": 3,
}  # fmt: skip
"""Field of a config -> a size under which a step costs milliseconds, for each algorithm that has the field."""
OWN: dict[str, dict[str, Any]] = {
    "classifier": {"label": "rewards"},
    "ppo_trees": {"capacity": 60, "depth": 2, "bins": 4},
    "dreamer": {"blocks": 2, "groups": 2, "count": 1},
    "mbrcsl": {"horizon": 30},  # so that paths return more than the data's best episode
    "diffusion_bc": {"hidden": (8, 8, 8)},
    "srl": {"sequence": 3},
    "tdmpc2": {"group": 4},  # simplices of a latent state of 8
}
"""Algorithm -> what it needs else."""


class Trained(NamedTuple):
    """A Learner on a CPU, and the agents that it was given."""

    learner: Learner
    agents: list[Agent]


def small_learner(name: str, **options: Any) -> Trained:
    """Of one algorithm, by its name, for all of `SEEDS` at once; `options` take the place of the small ones."""
    kind = ALGORITHMS[name]
    fields = {field.name for field in dataclasses.fields(kind.Config)}
    sizes = {field: value for field, value in SMALL.items() if field in fields}
    config = kind.configure(**{**sizes, **OWN.get(name, {}), **options})
    return _acting(kind, config) if kind.requires.online else _from_data(kind, config)


def _dataset() -> Dataset:
    """Twelve episodes of ten steps with costs, as if `Walk` had been acted in."""
    data = random_dataset(12, 10)
    actions = np.random.default_rng(1).uniform(-1, 1, (len(data.rewards), 3)).astype(np.float32)
    return data.replace(actions=actions, rewards=data.rewards + 1)


def _from_data(kind: type[Agent], config: Any) -> Trained:
    data, problem = _dataset(), spec_of(Walk())
    if kind is DiscreteCQL:  # whose choices are one-hot rows
        chosen = np.eye(3, dtype=np.float32)[data.actions.argmax(1)]
        data, problem = (
            data.replace(actions=chosen, attributes={**data.attributes, CHOICES: 3}),
            Spec.of_choices(data.observation_dim, 3),
        )
    agents = [kind(problem, config).fresh(seed) for seed in SEEDS]
    ready = [agent.prepare(data) for agent in agents][-1]
    sources = agents[0].sources(Stores(ready, store_from_dataset(ready, agents[0].required_columns)))
    learner = Learner(agents, SEEDS, sources, batch_size=ROWS, planned_steps=50)
    if any(isinstance(entry, Rule) for entry in learner.order):  # such as one that imagines rows
        learner.run(FILLED)
    return Trained(learner, agents)


def _acting(kind: type[Agent], config: Any) -> Trained:
    """After as many steps as fill a replay buffer with something; blocks have their memory from the first."""
    env: Any = (Walk if kind.requires.continuous else Bandit)(len(SEEDS) * config.num_envs)
    agents = [kind(spec_of(env), config).fresh(seed) for seed in SEEDS]
    data = None
    for agent in agents:
        if kind.requires.data == "required":
            data = agent.prepare(_dataset())
        else:
            prepare_without_data(agent)
    loop = make_loop(agents, SEEDS, env, planned_steps=400, batch_size=ROWS, dataset=data)
    if isinstance(loop, OffPolicyLoop):
        loop.run(ACTED)
    return Trained(loop.learner, agents)
