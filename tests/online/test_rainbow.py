"""DQN's options that are the parts of Rainbow: full updates by a second implementation, and what they learn."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from online_problems import loop, parameters
from refusals import refused
from test_dqn import DISCOUNT, STATES, Ladder, Saved, best_values
from test_off_policy_updates import Numbered
from torch import Tensor

from surefoot.core.actors.value_heads import CategoricalHead, QuantileHead, ValueHead
from surefoot.core.base.errors import ExportError
from surefoot.core.base.random import Noise, Stream
from surefoot.core.engine.agent import Batch, Metrics, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.noisy import NoisyMLP
from surefoot.core.policy.cpp import parts_of
from surefoot.core.policy.policy import Policy
from surefoot.envs.interface import VectorEnvironment
from surefoot.online import DQN, spec_of
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.online.loops.replay import ReplaySteps, ReplayWindows

ROWS, STEPS, CHOICES, GAMMA = 5, 4, 3, 0.9
PROBLEM = Spec.of_choices(3, CHOICES)
RAINBOW: dict[str, Any] = {"dueling": True, "returns": "categorical", "noisy": 0.5, "atoms": 6}


class Streams:
    """A head's networks as lists of matrices, with the noise put into whole matrices."""

    def __init__(self, head: ValueHead, learner: Learner, name: str) -> None:
        self.head = head
        own = {n: v.clone() for n, v in learner.agents_parameters(0).items() if n.startswith(f"{name}.")}
        self.own = {n.removeprefix(f"{name}."): v.requires_grad_() for n, v in own.items()}

    def _matrices(self, stream: str, noise: np.ndarray | None) -> list[tuple[Tensor, Tensor]]:
        noisy = isinstance(getattr(self.head, stream), NoisyMLP)
        mean = f"{stream}.mean" if noisy else stream
        found = []
        for k in range(3):
            w, b = self.own[f"{mean}.weights.{k}"], self.own[f"{mean}.biases.{k}"]
            if noise is not None:
                f = np.sign(noise) * np.sqrt(np.abs(noise))
                into, out = f[: w.shape[1]], f[w.shape[1] : sum(w.shape)]
                noise = noise[sum(w.shape) :]
                w = w + self.own[f"{stream}.weights.{k}"] * torch.from_numpy(np.outer(out, into))
                b = b + self.own[f"{stream}.biases.{k}"] * torch.from_numpy(out)
            found.append((w, b))
        return found

    def __call__(self, x: Tensor, noise: Tensor | None) -> Tensor:
        """(B, A, N)."""
        drawn = None if noise is None else noise[0].numpy()
        first = None if drawn is None else drawn[: self.head.advantage.noise_dim]  # type: ignore[union-attr]
        rest = None if drawn is None else drawn[self.head.advantage.noise_dim :]  # type: ignore[union-attr]
        advantage = self._run(x, "advantage", first).view(len(x), CHOICES, -1)
        if self.head.common is None:
            return advantage
        value = self._run(x, "common", rest)
        return torch.stack([value + advantage[:, a] - advantage.mean(1) for a in range(CHOICES)], 1)

    def _run(self, x: Tensor, stream: str, noise: np.ndarray | None) -> Tensor:
        for k, (w, b) in enumerate(self._matrices(stream, noise)):
            x = torch.einsum("bi,oi->bo", x, w) + b
            x = torch.where(x > 0, x, torch.zeros_like(x)) if k < 2 else x
        return x


def expectation(kind: str, outputs: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    """(B, A) values."""
    if kind == "mean":
        return outputs[..., 0]  # type: ignore[no-any-return]
    if kind == "quantile":
        return outputs.mean(-1)  # type: ignore[no-any-return]
    p = np.exp(outputs - outputs.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ atoms  # type: ignore[no-any-return]


def one_loss(kind: str, taken: Tensor, other: np.ndarray, reward: float, reach: float, atoms: np.ndarray) -> Tensor:
    """Of one row: (N,) outputs of the choice, and what the target network says of the next one."""
    if kind == "mean":
        u = taken[0] - (reward + reach * other[0])
        return 0.5 * u * u if abs(float(u)) < 1 else abs(u) - 0.5
    if kind == "quantile":
        loss, count = torch.zeros((), dtype=torch.float64), len(other)
        for i in range(count):
            for j in range(count):
                u = reward + reach * other[j] - taken[i]
                h = 0.5 * u * u if abs(float(u)) < 1 else abs(u) - 0.5
                loss = loss + abs((i + 0.5) / count - float(u < 0)) * h / count
        return loss
    p = np.exp(other - other.max()) / np.exp(other - other.max()).sum()
    wanted, width = np.zeros(len(atoms)), atoms[1] - atoms[0]
    for j, z in enumerate(atoms):
        place = (min(max(reward + reach * z, atoms[0]), atoms[-1]) - atoms[0]) / width
        low = min(int(place), len(atoms) - 2)
        wanted[low] += p[j] * (low + 1 - place)
        wanted[low + 1] += p[j] * (place - low)
    return -(torch.from_numpy(wanted) * torch.log_softmax(taken, 0)).sum()


def batches() -> list[dict[str, Tensor]]:
    source = np.random.default_rng(8)
    made = []
    for _ in range(STEPS):
        found = {
            "observations": source.normal(size=(ROWS, 3)),
            "actions": np.eye(CHOICES)[source.integers(0, CHOICES, ROWS)],
            "rewards": 2 * source.normal(size=ROWS),
            "terminations": (source.random(ROWS) < 0.4).astype(float),
            "next_observations": source.normal(size=(ROWS, 3)),
            "weights": source.uniform(0.2, 1, ROWS),
        }
        made.append({name: torch.from_numpy(value) for name, value in found.items()})
    return made


@pytest.mark.parametrize(
    "options",
    [
        RAINBOW,
        {"dueling": True},
        {"noisy": 0.3, "double": False},
        {"returns": "quantile", "atoms": 4, "noisy": 0.5},
        {"returns": "categorical", "atoms": 6, "double": False},
        {"returns": "quantile", "dueling": True, "atoms": 4},
    ],
    ids=["rainbow", "dueling", "noisy", "noisy quantiles", "categorical", "dueling quantiles"],
)
def test_full_updates_equal_the_second_implementation(options: dict[str, Any]) -> None:
    chosen = {"learning_rate": 1e-2, "target_every": 3, "discount": GAMMA, "value_range": (-2.0, 3.0), **options}
    agent = DQN(PROBLEM, hidden=(5, 4), **chosen).fresh(2)
    for value in agent.target_critic.parameters():
        value.data.add_(0.1)
    given = batches()
    learner = Learner([agent], [0], Numbered(given), batch_size=ROWS, dtype=torch.float64)
    kind, head = agent.config.returns, agent.critic
    assert isinstance(head, ValueHead)
    atoms = np.linspace(-2.0, 3.0, agent.config.atoms)
    online, target = Streams(head, learner, "critic"), Streams(head, learner, "target_critic")
    learned = [v for n, v in online.own.items() if n != "returns"]
    adam = torch.optim.Adam(learned, lr=1e-2)
    names = ["weights", "target_weights", "choice_weights"][: 3 if agent.config.double else 2]
    width = head.weight_noise_dim
    noises = {name: Noise("normal", width, whole_batch=True) for name in names} if width else {}
    stream = Stream([0], 1, noises, torch.device("cpu"), torch.float64)
    for step, batch in enumerate(given):
        drawn = {name: value[0] for name, value in stream.at(step).items()}
        with torch.no_grad():
            others = target(batch["next_observations"], drawn.get("target_weights")).numpy()
            judged = others
            if agent.config.double:
                judged = online(batch["next_observations"], drawn.get("choice_weights")).numpy()
        best = expectation(kind, judged, atoms).argmax(-1)
        outputs = online(batch["observations"], drawn.get("weights"))
        loss = torch.zeros((), dtype=torch.float64)
        for row in range(ROWS):
            taken = outputs[row, int(batch["actions"][row].argmax())]
            reach = GAMMA * (1 - float(batch["terminations"][row]))
            own = one_loss(kind, taken, others[row, best[row]], float(batch["rewards"][row]), reach, atoms)
            loss = loss + float(batch["weights"][row]) * own / ROWS
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 10.0)
        adam.step()
        if step % 3 == 2:
            for name, value in target.own.items():
                value.data.copy_(online.own[name].data)
        found = learner.run(1)
        assert found["critic_loss"][0] == pytest.approx(float(loss.detach()), rel=1e-9)
        now = learner.agents_parameters(0)
        for copy, name in ((online, "critic"), (target, "target_critic")):
            for part, value in copy.own.items():
                torch.testing.assert_close(now[f"{name}.{part}"], value.detach(), rtol=1e-8, atol=1e-10)


# -- what it learns ------------------------------------------------------------------------------------------------


class Shown(DQN):
    """DQN whose values can be asked for."""

    def values_of(self, observations: Tensor) -> Tensor:
        return self.critic(observations)


class Backwards(Shown):
    """It learns the cost where it should learn the reward."""

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        return super().critic_loss({**batch, "rewards": -batch["rewards"]}, noise)


def learned(kind: type[DQN] = Shown, **options: Any) -> np.ndarray:
    """(6, 3) values of the ladder after 800 training steps on random choices."""
    chosen: dict[str, Any] = {
        "hidden": (32, 32), "num_envs": 8, "discount": DISCOUNT, "initial_steps": 2400, "updates_per_step": 0.5,
        "last_epsilon": 1.0, "target_every": 10, "learning_rate": 3e-3, "value_range": (-1.0, 4.0), "atoms": 41,
        **options,
    }  # fmt: skip
    agent = kind(Spec.of_choices(1, 3), **chosen)
    ran = OffPolicyLoop([agent.fresh(0)], [0], Ladder(8), planned_steps=4000, batch_size=64, kernels=True)
    ran.run(4000)
    return ran.learner.apply("values_of", STATES[None])[0].numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "options",
    [{"dueling": True, "priority": 0.6}, {"returns": "quantile", "noisy": 0.2}, {"returns": "categorical"}],
    ids=["dueling, prioritised", "noisy quantiles", "categorical"],
)
def test_values_are_those_of_value_iteration(options: dict[str, Any]) -> None:
    found, wanted = learned(**options), best_values()
    np.testing.assert_allclose(found, wanted, atol=0.17)
    assert (found.argmax(1)[:5] == 2).all()


def test_with_the_rewards_sign_flipped_it_climbs_nowhere() -> None:
    found = learned(Backwards, returns="quantile", dueling=True)
    assert found[4].argmax() != 2
    assert found[4, 2] < -0.7


# -- how it runs ---------------------------------------------------------------------------------------------------

ALL: dict[str, Any] = {**RAINBOW, "priority": 0.5, "priority_steps": 50, "n_step": 3, "initial_steps": 40}


@pytest.mark.parametrize("options", [ALL, {**ALL, "returns": "quantile", "noisy": 0.0, "replay_capacity": 60}])
def test_a_killed_run_continues_bit_for_bit(options: dict[str, Any]) -> None:
    def fresh() -> OffPolicyLoop:
        return loop("dqn", Saved(), kernels=True, batch_size=16, **options)

    whole = fresh()
    whole.run(90)
    saved = {name: value.clone() for name, value in whole.state(0).items()}
    resumed = fresh()
    assert resumed.restore([saved], 90) is None
    np.testing.assert_equal(resumed.run(40), whole.run(40))
    assert torch.equal(parameters(resumed), parameters(whole))
    assert len(saved["source/batch/tree"].unique()) > 10


def test_stacked_seeds_equal_each_alone() -> None:
    options: dict[str, Any] = {**ALL, "initial_steps": 20, "batch_size": 16}
    together = loop("dqn", Ladder(4), seeds=(1, 2), **options)
    together.run(50)
    for position, seed in enumerate((1, 2)):
        alone = loop("dqn", Ladder(2), seeds=(seed,), **options)
        alone.run(50)
        torch.testing.assert_close(parameters(alone), parameters(together, position), rtol=1e-3, atol=1e-4)


def test_noisy_weights_explore_and_the_deployed_policy_has_their_means() -> None:
    agent = DQN(PROBLEM, hidden=(8,), noisy=3.0).fresh(0)
    observations = torch.randn(1, 3).expand(500, 3)
    noise = torch.randn(500, agent.explore_dim)
    made = agent.explore(observations, noise)
    assert (made.sum(1) == 1).all()
    assert (made.mean(0) > 0.02).sum() > 1
    assert torch.equal(agent.explore(observations, noise), made)
    assert len(agent.policy()(observations).unique()) == 1
    assert [update.name for update in agent.updates()] == ["critic_loss", "target_critic"]  # no epsilon


def test_rows_of_steps_are_what_windows_give() -> None:
    ran = loop("dqn", Ladder(2), n_step=3, num_envs=2, initial_steps=30)
    ran.run(40)
    source = ran.learner.sources["batch"]
    assert isinstance(source, ReplaySteps)
    rows = source.rows(0)[0]
    windows = ReplayWindows(ran.experience.buffer, 3)
    windows.bind([0], 4, torch.device("cpu"))
    found, wanted = source.gather(rows), ran.agent.annotate(windows.gather(rows))
    for name in ("observations", "actions", "rewards", "reach", "next_observations"):
        assert torch.equal(found[name], wanted[name]), name


@pytest.mark.parametrize("kind", ["plain", "quantile", "categorical"])
def test_its_policy_is_saved_and_read_exported_and_runs_in_cpp_where_a_network_decides(
    kind: str, tmp_path: pathlib.Path
) -> None:
    options: dict[str, Any] = {"plain": {"dueling": True}, "quantile": {"returns": "quantile", "dueling": True}}.get(
        kind, {"returns": "categorical"}
    )
    agent = DQN(PROBLEM, hidden=(8, 6), noisy=0.5, atoms=7, **options).fresh(0)
    observations = 5 * torch.randn(300, 3)
    wanted = agent.critic(observations).argmax(-1)
    assert len(wanted.unique()) > 1
    policy = agent.policy()
    policy.save(tmp_path / "policy")
    assert torch.equal(Policy.load(tmp_path / "policy")(observations), wanted)
    policy.export(tmp_path / "p.pt2")
    exported = torch.export.load(tmp_path / "p.pt2").module()(observations)
    assert torch.equal(exported.view(-1), wanted)
    if kind == "categorical":
        with pytest.raises(ExportError, match=r"head is 'categorical_head'; export it to \.onnx"):
            policy.export(tmp_path / "p.hpp")
        return
    network = parts_of(policy.actor).network
    assert isinstance(network, MLP)
    assert torch.equal(network(observations).argmax(-1), wanted)
    policy.export(tmp_path / "p.hpp")


class Images(VectorEnvironment):
    """Noise to look at; the choice that the first pixel names pays 1."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, Dict({"image": Box(0, 255, (36, 36, 3), np.uint8)}), Discrete(3))
        self.source = np.random.default_rng(0)
        self.images, self.time = self.draw(), 0

    def draw(self) -> np.ndarray:
        return self.source.integers(0, 255, (self.num_envs, 36, 36, 3), dtype=np.uint8)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.images = self.draw()
        return {"image": self.images.copy()}, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rewards = (self.images[:, 0, 0, 0] % 3 == np.asarray(actions)).astype(np.float32)
        self.images, self.time = self.draw(), self.time + 1
        ended = np.full(self.num_envs, self.time % 7 == 0)
        nothing, seen = np.zeros(self.num_envs, bool), {"image": self.images.copy()}
        info = {"final_obs": {"image": self.draw()}, "_final_obs": ended} if ended.any() else {}
        return seen, rewards, nothing, ended, info


def test_it_learns_from_images_with_all_parts(tmp_path: pathlib.Path) -> None:
    problem = Images(2)
    agent = DQN(spec_of(problem), encoder="small", encoder_features=6, num_envs=2, **{**ALL, "hidden": (8,)}).fresh(0)
    ran = OffPolicyLoop([agent], [0], problem, planned_steps=100, batch_size=8)
    before = {name: value.clone() for name, value in ran.learner.agents_parameters(0).items()}
    found = ran.run(60)
    after = ran.learner.agents_parameters(0)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "encoder.images.image.convolutions.0.weight" in changed
    assert np.isfinite(found["critic_loss"][0])
    policy = ran.learner.extract(0).policy()
    policy.save(tmp_path / "p")
    seen = {"image": torch.randint(0, 255, (4, 36, 36, 3), dtype=torch.uint8)}
    assert torch.equal(Policy.load(tmp_path / "p")(seen), policy(seen))


def test_the_preset_is_rainbows() -> None:
    c = DQN.configure(preset="rainbow")
    assert (c.learning_rate, c.adam_epsilon, c.n_step, c.priority, c.atoms) == (6.25e-5, 1.5e-4, 3, 0.5, 51)
    assert (c.target_every / c.updates_per_step, c.initial_steps, c.noisy) == (8_000, 20_000, 0.5)
    head = DQN(PROBLEM, preset="rainbow").critic
    assert isinstance(head, CategoricalHead)
    assert head.dueling
    assert isinstance(DQN(PROBLEM, returns="quantile").critic, QuantileHead)


def test_options_that_do_not_go_together_are_refused() -> None:
    for options, said in (
        ({"returns": "median"}, ("returns", "choice")),
        ({"returns": "categorical", "value_range": (1.0, -1.0)}, ("value_range", "conflict")),
        ({"returns": "categorical", "atoms": 1}, ("atoms", "conflict")),
        ({"noisy": -0.5}, ("noisy", "range")),
        ({"priority": 1.5}, ("priority", "range")),
        ({"priority": 0.5, "offline_fraction": 0.5}, ("offline_fraction", "conflict")),
        ({"priority": 0.5, "hindsight": 4}, ("hindsight", "conflict")),
        ({"priority": 0.5, "updates_per_step": 0.01, "replay_capacity": 50}, ("replay_capacity", "conflict")),
    ):
        with refused(*said):
            DQN.configure(**options)
