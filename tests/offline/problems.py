"""Agents, stores and Learners on made-up transitions, small enough for tests."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Source, Stores
from surefoot.data.store import Store
from surefoot.offline import ALGORITHMS

SMALL: dict[str, Any] = {"hidden": (8, 6)}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, {}) for name in ALGORITHMS if name not in ("act", "classifier", "preferences")
    },  # their own tests have them
    "iql-corl": ("iql", {"preset": "corl"}),
    "iql-deterministic": ("iql", {"actor": "deterministic"}),
    "iql-dropout": ("iql", {"dropout": 0.25}),
    "cql-learned": ("cql", {"learn_cql_weight": True, "critics": 3, "sampled_actions": 3, "max_target_backup": False}),
    "calql-kitchen": ("calql", {"importance_sampling": False, "critics": 3, "subset_replacement": True}),
    "dt": ("dt", {"width": 8, "layers": 1, "heads": 2, "context": 3}),
    "cql-norm": ("cql", {"layer_norm_critic": True, "sampled_actions": 2}),
    "famo2o_cql": ("famo2o_cql", {"coefficients": (0.5, 9.5)}),  # gradients that rounding is small beside
    "rebrac-fql": ("rebrac", {"preset": "fql", "chunk": 2, "critics": 3, "aggregate": "mean", "deviations": 0.5}),
    "flow_bc-chunk": ("flow_bc", {"chunk": 3, "network": "embedded", "hidden": (8, 8, 8)}),
    "flow_bc-shortcut": ("flow_bc", {"preset": "shortcut", "hidden": (8, 8, 8), "chunk": 2, "flow_steps": 4}),
    "flow_bc-one_step": ("flow_bc", {"preset": "one_step", "hidden": (8, 8, 8)}),
    "fql-chunk": ("fql", {"chunk": 3, "aggregate": "min", "normalize_q": True}),
    "ifql-chunk": ("ifql", {"chunk": 2, "critics": 3, "aggregate": "mean", "deviations": 0.5}),
    "idql": ("idql", {"width": 6, "blocks": 1}),
    "awr_flow-chunk": ("awr_flow", {"chunk": 2}),
    "diffusion_bc-ddim": ("diffusion_bc", {"diffusion_steps": 6, "sampler_steps": 2, "chunk": 2}),
    "qam": ("qam", {"critics": 2, "chunk": 2, "flow_steps": 2}),
    "qam_e": ("qam_e", {"critics": 2, "flow_steps": 2}),
    "qam_f": ("qam_f", {"critics": 2, "flow_steps": 2}),
    "edac": ("edac", {"critics": 3}),
    "sac_n": ("sac_n", {"critics": 3}),
    "msg": ("msg", {"critics": 3}),
    "mcq": ("mcq", {"vae_hidden": (8, 6), "sampled_actions": 3}),
    "msg-shared": ("msg", {"critics": 3, "targets": "shared"}),
    "bisim_iql": ("bisim_iql", {"history": 1, "latent": 6}),
    "xql-others": ("xql", {"random_actions": 2, "action_noise": 0.1, "value_updates": 2, "dropout": 0.25}),
    "dvl-chi": ("dvl", {"divergence": "chi_square", "random_actions": 1}),
    "aligndiff": (
        "aligndiff",
        {
            "horizon": 3,
            "attribute_updates": 1,
            "attribute_width": 8,
            "attribute_heads": 2,
            "pairs": 30,
            "diffusion_steps": 6,
            "wanted": (0.5,),
            "attribute_learning_rate": 1e-4,  # the keys' biases have no gradient but by rounding
        },
    ),
    **{name: (name, {"latent": 5, "width": 7}) for name in ("fb", "vc_fb", "mc_fb", "hilp")},
    "vc_fb-fixed": ("vc_fb", {"latent": 5, "width": 7, "preset": "fixed"}),
    "riql-k3": ("riql", {"critics": 3, "quantile": 0.1, "sigma": 0.5}),
}
"""Every algorithm, and the variants of CQL, IQL and RIQL whose losses differ."""


OF_CHOICES = ("discrete_cql",)
"""Algorithms that learn discrete actions alone."""


def spec(observations: int = 3, actions: int = 2) -> Spec:
    return Spec(observations, actions, (-1.0,) * actions, (1.0,) * actions)


def agents(variant: str, seeds: Sequence[int], **options: Any) -> list[Agent]:
    """Agents of a variant, each with the weights that its seed gives."""
    name, own = VARIANTS[variant]
    kind = ALGORITHMS[name]
    fewer = {field: 3 for field in ("flow_steps", "samples") if hasattr(kind.Config, field)}
    sizes = {name: value for name, value in SMALL.items() if hasattr(kind.Config, name)}
    config = kind.configure(**{**sizes, **fewer, **own, **options})
    problem = Spec.of_choices(3, 2) if name in OF_CHOICES else spec()
    return [kind(problem, config).fresh(seed) for seed in seeds]


def random_store(dtype: torch.dtype = torch.float32, rows: int = 200, device: str = "cpu", **columns: Any) -> Store:
    """Transitions of normal observations, uniform actions, some of them terminal."""
    source = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    made = {
        "observations": normal(rows, 3),
        "actions": normal(rows, 2).tanh(),
        "rewards": normal(rows),
        "terminations": (normal(rows) > 1).double(),
        "next_observations": normal(rows, 3),
        "returns_to_go": normal(rows),
        "expert": (torch.arange(rows, dtype=torch.float64) % 21 < 7).double(),
        "timesteps": torch.arange(rows, dtype=torch.float64) % 7,
    }
    return Store.pack({**made, **columns}, device=device, dtype=dtype)


def learner(
    agents: Sequence[Agent], seeds: Sequence[int], store: Store, dtype: torch.dtype = torch.float32, **options: Any
) -> Learner:
    settings = {"batch_size": 16, "planned_steps": 200, "dtype": dtype, **options}
    return Learner(agents, seeds, own_sources(agents[0], store), **settings)


def own_sources(agent: Agent, store: Store) -> dict[str, Source]:
    """The agent's sources of rows that lie in episodes of seven steps."""
    known = np.ones(len(store), bool)
    episodes = types.SimpleNamespace(
        valid=known, transitions=known, attributes={}, episode_ids=np.arange(len(store)) // 7
    )
    return dict(agent.sources(Stores(episodes, store)))


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    size = float(expected.double().norm())
    return float((found.double() - expected.double()).norm()) / max(size, 1e-30)
