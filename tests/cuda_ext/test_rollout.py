"""Rollouts: the native loop says what its twin says; a result depends on seeds, parameters and policy only."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import signal
import time

import numpy as np
import pytest
import torch
from rollout_problems import largest_differences, random_policy

from surefoot import cuda_ext
from surefoot.cuda_ext.operation import RECORDS, operator
from surefoot.cuda_ext.rollout import Rollout, rollout
from surefoot.cuda_ext.system import System
from surefoot.envs.systems import SYSTEMS, system

needs_native = pytest.mark.skipif(cuda_ext.native() is None, reason=cuda_ext.why_not_native())
NETWORKS = {
    "tanh": {"hidden": [64, 64], "activation": "tanh"},
    "relu, layer norm, clipped, noise after": {
        "hidden": [7, 13],
        "activation": "relu",
        "layer_norm": True,
        "squash": False,
        "sampling": "after",
    },
    "silu, noise before the tanh": {"hidden": [21], "activation": "silu", "sampling": "before"},
    "linear": {"hidden": []},
}


def mixed_parameters(s: System, count: int) -> torch.Tensor:
    """(count, P): the defaults with a tenth of change, and noise on half of the rows."""
    factors = 0.95 + 0.1 * torch.rand(count, len(s.parameters), generator=torch.Generator().manual_seed(1))
    table = s.default_parameters().float() * factors
    noise = [k for k, parameter in enumerate(s.parameters) if parameter.name.endswith("_noise")]
    table[::2, noise] = 0.1
    return table


@needs_native
@pytest.mark.parametrize("episodes", ["one", "many"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_native_rollouts_of_random_actions_equal_the_twin(name: str, episodes: str) -> None:
    s = system(name)
    given = {
        "random": True,
        "num_envs": 150,  # more than one block, and not whole blocks
        "seeds": 5,
        "horizon": 12,
        "max_steps": 9,
        "parameters": mixed_parameters(s, 150),
        "episodes": episodes,
        "record": RECORDS,
    }
    differences = largest_differences(rollout(s, backend="native", **given), rollout(s, backend="twin", **given))
    assert max(differences.values()) < 2e-4, differences


@needs_native
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["pendulum", "cartpole_swingup"])
def test_policies_in_the_native_loop_act_as_in_torch(name: str, network: str) -> None:
    s = system(name)
    given = {
        "policy": random_policy(s, **NETWORKS[network]),
        "num_envs": 70,
        "horizon": 20,
        "record": ("observations", "actions"),
    }
    differences = largest_differences(rollout(s, backend="native", **given), rollout(s, backend="twin", **given))
    assert max(differences.values()) < 1e-4, differences


@needs_native
def test_one_action_of_a_policy_is_exact_to_three_millionths_of_its_range() -> None:
    s = system("pendulum")
    for network in NETWORKS.values():
        policy = random_policy(s, **network)
        native = rollout(s, policy=policy, num_envs=500, horizon=1, record=("observations", "actions"))
        exact = dataclasses.replace(
            policy,
            **{
                field.name: value.double() if isinstance(value, torch.Tensor) else [v.double() for v in value]
                for field in dataclasses.fields(policy)
                if isinstance(value := getattr(policy, field.name), torch.Tensor | list)
            },
        )
        twin = rollout(s, policy=policy, num_envs=500, horizon=1, record=("actions",), backend="twin")
        if policy.sampling:
            reference = twin.records["actions"][0].double()
        else:
            reference = exact.actions(native.records["observations"][0].double())
        assert float((native.records["actions"][0] - reference).abs().max()) < 1e-5  # of a range of 4 N m


@needs_native
@pytest.mark.parametrize("name", ["cartpole_balance", "pendulum"])
def test_the_number_of_threads_changes_nothing(name: str) -> None:
    s = system(name)
    given = {"policy": random_policy(s, [16]), "num_envs": 1000, "horizon": 60, "episodes": "many", "record": RECORDS}
    one, three = rollout(s, threads=1, **given), rollout(s, threads=3, **given)
    assert max(largest_differences(one, three).values()) == 0


@needs_native
def test_rollouts_in_several_threads_of_python_and_in_a_forked_process_use_threads_too() -> None:
    s = system("pendulum")
    given = {"random": True, "num_envs": 1000, "horizon": 60, "threads": 3}
    expected = [rollout(s, seeds=seed, **given).returns for seed in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            found = pool.map(lambda seed: rollout(s, seeds=seed, **given).returns, range(4))
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    child = os.fork()
    if child == 0:  # its threads did not come along
        os._exit(0 if torch.equal(rollout(s, seeds=2, **given).returns, expected[2]) else 1)
    deadline = time.monotonic() + 300
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)


@needs_native
@pytest.mark.parametrize("name", SYSTEMS)
def test_recording_changes_no_result(name: str) -> None:
    s = system(name)
    given = {"random": True, "num_envs": 300, "seeds": 3, "horizon": 90, "max_steps": 31, "episodes": "many"}
    plain, recorded = rollout(s, **given), rollout(s, record=("rewards",), **given)  # without records: steps in strides
    for field in dataclasses.fields(Rollout):
        if isinstance(value := getattr(plain, field.name), torch.Tensor):
            assert torch.equal(value, getattr(recorded, field.name)), field.name
    assert torch.equal(plain.carry.states, recorded.carry.states)
    assert int(plain.finished.min()) >= 2


def agrees_with_records(s: System, **given: object) -> Rollout:
    """A rollout under random actions in strides; it must be what the steps of one with records give, bit for bit."""
    plain = rollout(s, random=True, **given)  # type: ignore[arg-type]
    recorded = rollout(s, random=True, record=("rewards",), **given)  # type: ignore[arg-type]
    for field in dataclasses.fields(Rollout):
        if isinstance(value := getattr(plain, field.name), torch.Tensor):
            assert torch.equal(value, getattr(recorded, field.name)), field.name
    assert torch.equal(plain.carry.states, recorded.carry.states)
    return plain


@needs_native
def test_strides_leave_a_parameter_out_only_where_it_is_0() -> None:
    s = system("pendulum")
    calm, windy = s.default_parameters(), s.default_parameters()
    wind = [parameter.name for parameter in s.parameters].index("wind")
    windy[wind] = 0.7
    given = {"num_envs": 200, "seeds": 1, "horizon": 300, "episodes": "many"}
    with_wind = agrees_with_records(s, parameters=windy, **given)
    assert not torch.allclose(with_wind.returns, agrees_with_records(s, parameters=calm, **given).returns)


@needs_native
def test_strides_step_with_care_where_states_are_large_but_have_not_diverged() -> None:
    s = system("double_integrator")
    still = torch.zeros(70, len(s.states))
    states = still.clone()
    states[3, 0], states[40, 1] = 4e5, -2e5
    given = {"seeds": 2, "horizon": 20, "max_steps": 8, "episodes": "many"}
    result = agrees_with_records(s, states=states, **given)
    assert int(result.diverged.sum()) == 0
    assert float(result.costs[3]) >= 8
    others = (torch.arange(70) != 3) & (torch.arange(70) != 40)
    assert torch.equal(result.returns[others], agrees_with_records(s, states=still, **given).returns[others])


@needs_native
def test_a_lane_that_diverges_changes_no_lane_beside_it() -> None:
    s = system("pendulum")
    given = {"random": True, "seeds": torch.arange(40), "horizon": 50, "episodes": "many"}
    states = torch.rand(40, 2, generator=torch.Generator().manual_seed(2))
    whole = rollout(s, states=states, **given)
    states[7, 0] = torch.inf
    broken = rollout(s, states=states, **given)
    assert broken.diverged.tolist() == [1 if k == 7 else 0 for k in range(40)]
    others = torch.arange(40) != 7
    assert torch.equal(broken.returns[others], whole.returns[others])
    assert torch.equal(broken.margins[others], whole.margins[others])


@needs_native
def test_the_builds_for_all_instruction_sets_agree() -> None:
    module = cuda_ext.native()
    assert module is not None
    s, best = system("cartpole_swingup"), module.level()
    shared = {"num_envs": 200, "horizon": 20}
    cases = [
        (s, {"policy": random_policy(s, [19, 8], sampling="after"), **shared}),
        *((system(name), {"random": True, "episodes": "many", **shared}) for name in ("pendulum", "cartpole_balance")),
    ]
    lower = {"v4": ["v2", "v3", "v4"], "v3": ["v2", "v3"]}.get(best, [best])
    try:
        for s, given in cases:
            reference = rollout(s, backend="twin", **given)
            for level in lower:
                module.set_level(level)
                assert max(largest_differences(rollout(s, **given), reference).values()) < 1e-4, (s.name, level)
    finally:
        module.set_level(best)


@needs_native
def test_an_environment_does_not_depend_on_those_beside_it() -> None:
    s = system("cartpole_balance")
    seeds = torch.randint(0, 2**32, (300,), generator=torch.Generator().manual_seed(0))
    given = {"random": True, "horizon": 100, "episodes": "many", "record": ("observations",)}
    together = rollout(s, seeds=seeds, **given)
    alone = rollout(s, seeds=seeds[[7, 123, 299]], **given)
    assert torch.equal(together.returns[[7, 123, 299]], alone.returns)
    assert torch.equal(together.records["observations"][:, [7, 123, 299]], alone.records["observations"])


@needs_native
def test_parameters_of_each_environment_act_on_it_alone() -> None:
    s = system("pendulum")
    heavy = s.default_parameters().float()
    heavy[0] = 20.0
    both = torch.stack([s.default_parameters().float(), heavy])
    seeds = torch.tensor([11, 11])
    mixed = rollout(s, random=True, seeds=seeds, parameters=both, horizon=50)
    plain = rollout(s, random=True, seeds=seeds, horizon=50)
    altered = rollout(s, random=True, seeds=seeds, parameters=heavy, horizon=50)
    assert mixed.returns[0] == pytest.approx(float(plain.returns[0]), rel=1e-5)
    assert mixed.returns[1] == pytest.approx(float(altered.returns[1]), rel=1e-5)
    assert abs(float(plain.returns[1] - altered.returns[1])) > 1


@pytest.mark.parametrize("backend", [pytest.param("native", marks=needs_native), "twin"])
def test_sums_agree_with_the_records_of_every_step(backend: str) -> None:
    s = system("cartpole_balance")
    one = rollout(s, random=True, num_envs=90, seeds=2, record=RECORDS, horizon=100, backend=backend)
    r = one.records
    lengths = one.lengths.long()
    assert (lengths < 100).any()
    assert torch.equal(r["rewards"].sum(0), one.returns)
    assert torch.equal(r["costs"].sum(0), one.costs)
    assert torch.equal((r["terminated"] | r["truncated"]).int().argmax(0) + 1, lengths)
    made = torch.arange(100)[:, None] < lengths
    assert torch.equal(r["rewards"] == 1, made)
    margins = torch.where(made, r["margins"], torch.inf)
    assert torch.equal(margins.amin(0), one.margins)
    assert torch.equal(r["costs"] == 1, made & (r["margins"] < 0))
    inside = made[1:, :, None]
    assert torch.equal(r["next_observations"][:-1] * inside, r["observations"][1:] * inside)


@pytest.mark.parametrize("backend", [pytest.param("native", marks=needs_native), "twin"])
def test_many_episodes_in_pieces_equal_one_piece(backend: str) -> None:
    s = system("cartpole_balance")
    given = {"policy": random_policy(s, [8], sampling="after"), "num_envs": 65, "seeds": 9, "episodes": "many"}
    given["backend"] = backend
    whole = rollout(s, horizon=80, record=("rewards", "observations"), **given)
    first = rollout(s, horizon=30, record=("rewards", "observations"), **given)
    second = rollout(s, horizon=50, record=("rewards", "observations"), carry=first.carry, **given)
    for name in ("rewards", "observations"):
        assert torch.equal(whole.records[name], torch.cat([first.records[name], second.records[name]]))
    assert torch.equal(whole.finished, first.finished + second.finished)
    assert int(whole.finished.sum()) > 65
    assert torch.equal(whole.carry.states, second.carry.states)


def test_rollouts_of_one_episode_do_not_go_on_from_a_carry() -> None:
    s = system("pendulum")
    cut = rollout(s, random=True, num_envs=3, horizon=20)
    assert cut.truncated.all()  # by the horizon: its states are last ones, and episode 1 has not started
    with pytest.raises(ValueError, match="carry continues rollouts of episodes='many'"):
        rollout(s, random=True, carry=cut.carry)


@needs_native
def test_the_first_episode_of_many_is_the_only_one_of_one() -> None:
    s = system("cartpole_balance")
    one = rollout(s, random=True, num_envs=64, seeds=4)
    many = rollout(s, random=True, num_envs=64, seeds=4, horizon=400, episodes="many", record=("terminated",))
    assert torch.equal(many.records["terminated"].int().argmax(0).int() + 1, one.lengths)
    assert torch.equal(one.finished, torch.ones_like(one.finished))
    assert torch.equal(many.finished_returns, many.finished_lengths.float())  # 1 a step
    assert int(many.finished.min()) > 5


@pytest.mark.parametrize("backend", [pytest.param("native", marks=needs_native), "twin"])
def test_a_state_that_is_no_number_ends_its_episode_and_is_counted(backend: str) -> None:
    s = system("pendulum")
    table = s.default_parameters().float().repeat(3, 1)
    table[1, 0] = torch.nan
    result = rollout(s, random=True, num_envs=3, parameters=table, record=RECORDS, backend=backend)
    assert result.diverged.tolist() == [False, True, False]
    assert result.lengths.tolist() == [200, 1, 200]
    assert result.costs[1] == 1
    assert result.returns[1] == 0
    assert torch.isfinite(result.returns).all()
    assert all(torch.isfinite(value).all() for value in result.records.values() if value.is_floating_point())
    assert torch.equal(result.records["next_observations"][0, 1], result.records["observations"][0, 1])
    many = rollout(s, random=True, num_envs=3, parameters=table, horizon=7, episodes="many", backend=backend)
    assert many.diverged.tolist() == [0, 7, 0]


@needs_native
def test_given_actions_are_clipped_to_the_bounds() -> None:
    s = system("pendulum")
    wild = 5 * torch.randn(30, 10, 1, generator=torch.Generator().manual_seed(0))
    a = rollout(s, actions=wild, record=("actions",))
    b = rollout(s, actions=wild.clamp(-2, 2))
    assert torch.equal(a.records["actions"], wild.clamp(-2, 2))
    assert torch.equal(a.returns, b.returns)


@needs_native
def test_numpy_arguments_and_initial_states_are_taken() -> None:
    s = system("cartpole_balance")
    states = np.zeros((5, 4))
    states[:, 2] = [0.0, 0.05, 0.1, 0.15, 0.3]
    result = rollout(s, actions=np.zeros((200, 5, 1)), states=states, record=("observations",))
    assert torch.equal(result.records["observations"][0], torch.from_numpy(states).float())
    assert result.lengths.tolist()[0] == 200  # balanced exactly
    assert result.lengths.tolist()[1:] == sorted(result.lengths.tolist()[1:], reverse=True)
    assert result.lengths[4] == 1  # started beyond 12 degrees


@needs_native
def test_torch_compile_takes_a_rollout_whole() -> None:
    s = system("cartpole_balance")
    policy = random_policy(s, [16])
    seeds = torch.arange(20)

    def evaluate(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        changed = dataclasses.replace(policy, weights=[weight, *policy.weights[1:]])
        result: Rollout = rollout(s, policy=changed, seeds=seeds, horizon=30, record=("terminated",))
        return result.returns.mean(), result.records["terminated"].any(0)

    compiled = torch.compile(evaluate, fullgraph=True, backend="aot_eager")
    for scale in (1.0, -3.0):
        for a, b in zip(compiled(scale * policy.weights[0]), evaluate(scale * policy.weights[0])):
            assert torch.equal(a, b)


@needs_native
def test_the_operator_passes_torchs_own_checks() -> None:
    s = system("pendulum")
    policy = random_policy(s, [8])
    widths = [len(s.states), len(s.actions), len(s.observations)]
    arguments = (
        *(s.handle, "native", torch.arange(6), s.default_parameters().float(), None, None, None, None),
        *(policy.packed(), policy.header, [10, 10], True, [0, 4], 1, widths),
    )
    torch.library.opcheck(operator, arguments)


def test_unfit_arguments_are_named() -> None:
    s = system("pendulum")
    policy = random_policy(s, [8])

    def message(**given: object) -> str:
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            rollout(s, **{"num_envs": 4, "horizon": 3, **given})  # type: ignore[arg-type]
        return str(caught.value)

    assert "exactly one" in message()
    assert "exactly one" in message(random=True, policy=policy)
    assert "at least one environment" in message(random=True, num_envs=0)
    assert "num_envs 4, seeds 2" in message(random=True, seeds=torch.arange(2))
    assert "must have (4, 2)" in message(random=True, states=torch.zeros(4, 3))
    assert "gravity" in message(random=True, parameters=torch.zeros(5))
    assert "must have (3, 4, 1)" in message(actions=torch.zeros(3, 4, 2))
    assert "must have (3, 4, 1)" in message(actions=torch.zeros(2, 4, 1))
    assert "'one' or 'many'" in message(random=True, episodes="two")
    assert "can record observations" in message(random=True, record=("observation",))
    assert "whole numbers" in message(random=True, seeds=torch.zeros(4))
    assert "horizon is 0" in message(random=True, horizon=0)
    assert "'native' or 'twin'" in message(random=True, backend="gpu")
    other = random_policy(system("cartpole_balance"), [8])
    assert "maps 4 observations" in message(policy=other)
    broken = dataclasses.replace(policy, weights=[policy.weights[0] * torch.nan, *policy.weights[1:]])
    assert "NaN" in message(policy=broken)
    assert "must have 2" in message(policy=dataclasses.replace(policy, biases=policy.biases[:1]))
    assert "relu, tanh or silu" in message(policy=dataclasses.replace(policy, activation="gelu"))


def test_records_beyond_the_limit_say_what_they_would_need() -> None:
    s = system("pendulum")
    with pytest.raises(ValueError, match=r"needs 12 GB.*limit of 1 GB"):
        rollout(s, random=True, num_envs=10**6, horizon=1000, record=("observations",), record_limit=1e9)
    with pytest.raises(ValueError, match="more than the limit"):  # of the machine's own memory
        rollout(s, random=True, num_envs=10**9, horizon=10**6, record=("rewards",))
