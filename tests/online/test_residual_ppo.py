"""ResiP: each step's action of a base that may remember, changed by PPO."""

from __future__ import annotations

import pathlib
from typing import Any

import gymnasium
import pytest
import torch
from test_residual import Reach

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.losses.policy_gradient import log_ratio
from surefoot.core.policy.policy import Policy
from surefoot.envs import make_vec
from surefoot.envs.adapters import adapt
from surefoot.offline import BC, FlowBC
from surefoot.online import ResidualPPO, spec_of
from surefoot.online.loops.on_policy import OnPolicyLoop

PROBLEM = Spec(3, 2, (-1.0, -1.0), (1.0, 1.0))
SMALL: dict[str, Any] = {"hidden": (8, 6), "horizon": 8, "epochs": 2, "minibatches": 2, "num_envs": 2}
BASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "chunks": (FlowBC, {"chunk": 3, "flow_steps": 2, "hidden": (8, 8)}),
    "plain": (BC, {"hidden": (8, 8)}),
    "history": (BC, {"hidden": (8, 8), "history": 3}),
}


def started(source: Any, spec: Spec, seed: int = 0, **options: Any) -> Any:
    config = {**SMALL, **options}
    torch.manual_seed(seed)
    agent = ResidualPPO(spec, **{**config, **ResidualPPO.inherit_options({"base": None, **config}, source)})
    agent.load_from(source)
    return agent


def loop(base: str, seeds: tuple[int, ...] = (0,), **options: Any) -> OnPolicyLoop:
    env = make_vec("native/pendulum", 2 * len(seeds))
    spec = spec_of(env)
    kind, settings = BASES[base]
    source = kind(spec, **settings).fresh(9)
    agents = [started(source, spec, seed, **options) for seed in seeds]
    return OnPolicyLoop(agents, seeds, env, planned_steps=3000, kernels=False)


@pytest.mark.parametrize("base", BASES)
def test_before_training_and_with_scale_0_it_is_the_base_bit_for_bit(base: str) -> None:
    """Its mean change is 0 at first; the base plays its plan and remembers as it would alone."""
    kind, settings = BASES[base]
    source = kind(PROBLEM, **settings).fresh(3)
    reference = source.policy()
    for agent in (started(source, PROBLEM), started(source, PROBLEM, scale=0.0)):
        mine, memories = agent.policy(), [reference.begin(4, 5)]
        memories.append(mine.begin(4, 5))
        for step in range(8):
            seen = torch.randn(4, 3)
            one, memories[0] = reference.act(seen, memories[0])
            two, memories[1] = mine.act(seen, memories[1])
            assert torch.equal(one, two)
            ended = torch.tensor([step == 3, False, False, False])
            outcome = (torch.zeros(4), torch.zeros(4), ended)
            memories = [p.observe_outcome(m, *outcome) for p, m in zip((reference, mine), memories, strict=True)]


def test_what_is_played_is_the_clipped_sum_and_the_density_is_that_of_the_change() -> None:
    agent = started(BC(PROBLEM, hidden=(8, 8)).fresh(0), PROBLEM, scale=3.0)
    seen, noise = torch.randn(50, 3), torch.randn(50, agent.explore_dim)
    with torch.no_grad():
        actions, kept = agent.sample(seen, noise)
    torch.testing.assert_close(actions, (kept["base"] + 3.0 * kept["change"]).clip(-1, 1))
    assert float(actions.abs().max()) == 1.0
    torch.testing.assert_close(kept["change"], torch.exp(torch.tensor(-1.0)) * noise)  # a mean of 0, e^-1
    found = agent.evaluate({"observations": seen, **{f"kept/{name}": value for name, value in kept.items()}})
    expected = torch.distributions.Normal(0.0, torch.exp(torch.tensor(-1.0))).log_prob(kept["change"]).sum(-1)
    torch.testing.assert_close(found.log_density, expected)


@pytest.mark.parametrize("base", BASES)
def test_the_first_ratio_of_a_block_is_1_and_the_base_stays(base: str) -> None:
    made = loop(base)
    agent: Any = made.agent
    before = {name: value.clone() for name, value in agent.base.state_dict().items()}
    made.run(16)
    block = made.blocks.fill(made.blocks_done)
    columns = made.learner.apply("columns", block)
    rows = {name: value[0].flatten(0, 1) for name, value in columns.items()}
    with torch.no_grad():
        ratio = log_ratio(made.agent.evaluate(rows).log_density, rows["behaviour_log_prob"]).exp()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in agent.base.state_dict().items())


@pytest.mark.parametrize("base", ["chunks", "history"])
def test_a_killed_run_goes_on_bit_for_bit(base: str) -> None:
    whole = loop(base)
    whole.run(32)
    state, step = {name: value.clone() for name, value in whole.state(0).items()}, whole.step
    whole.run(32)
    other = loop(base)
    assert other.restore([state], step) is None
    other.run(32)
    for name, value in whole.state(0).items():
        assert torch.equal(value, other.state(0)[name]), name


def test_stacked_seeds_are_single_seeds() -> None:
    both, alone = loop("chunks", (3, 5)), loop("chunks", (3,))
    both.run(32)
    alone.run(32)
    mine, theirs = both.learner.agents_parameters(0), alone.learner.agents_parameters(0)
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=2e-3, atol=2e-5)


def test_the_policy_s_file_holds_both_parts(tmp_path: pathlib.Path) -> None:
    source = FlowBC(PROBLEM, hidden=(8, 8), chunk=3).fresh(0)
    policy = started(source, PROBLEM, scale=0.3).policy()
    policy.save(tmp_path / "policy.safetensors")
    again = Policy.load(tmp_path / "policy.safetensors")
    seen, noise = torch.randn(4, 3), torch.randn(4, policy.noise_dim)
    expected = policy.act(seen, policy.begin(4), noise)[0]
    assert torch.equal(again.act(seen, again.begin(4), noise)[0], expected)


def test_bad_options_are_named() -> None:
    with pytest.raises(ConfigError, match=r"residual_ppo\.chunk is 2"):
        ResidualPPO.configure(chunk=2)
    with pytest.raises(ConfigError, match=r"residual_ppo\.scale is -1"):
        ResidualPPO.configure(scale=-1.0)
    with pytest.raises(ConfigError, match=r"residual_ppo\.base is no description"):
        ResidualPPO(PROBLEM, base="[]")


def test_it_learns_what_a_half_good_base_is_off_by() -> None:
    """The base says 0.3 everywhere, and s / 2 is best: its error is 0.09 + 1 / 12."""
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    env = adapt(gymnasium.vector.SyncVectorEnv([Reach] * 16, autoreset_mode=mode))
    spec = spec_of(env)
    source = BC(spec, hidden=(8,)).fresh(0)
    with torch.no_grad():
        source.actor.mlp.weights[-1].zero_()
        source.actor.mlp.biases[-1].fill_(torch.atanh(torch.tensor(0.3)))
    agent = started(
        source, spec, num_envs=16, horizon=16, epochs=6, minibatches=4, hidden=(32, 32), scale=1.0, target_kl=None,
        learning_rate=3e-3, schedule="constant", normalize_rewards=False,
    )  # fmt: skip
    seen = torch.linspace(-1, 1, 64).unsqueeze(1)

    def error(policy: Any) -> float:
        return float((policy.act(seen, policy.begin(len(seen)))[0] - seen / 2).square().mean())

    assert error(agent.policy()) == pytest.approx(0.09 + 1 / 12, rel=0.1)
    OnPolicyLoop([agent], [0], env, planned_steps=8_000, kernels=False).run(8_000)
    assert error(agent.policy()) < 0.02
