"""A model inside an algorithm: what its functions read, the weights of its rows, and what it is started with."""

from __future__ import annotations

import pytest
import torch
from plane import plane_data
from refusals import refused
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Stores
from surefoot.data.store import store_from_dataset
from surefoot.model_based import ALGORITHMS
from surefoot.model_based.rambo import RAMBO
from surefoot.world_models.ensemble.learning import MODEL, WEIGHTS
from surefoot.world_models.ensemble.mismatch import near_best
from surefoot.world_models.futures import Objective

MODELS = {"model_hidden": (7, 5), "model_decays": (), "model_members": 4, "model_elites": 3, "model_rows": 16}


def height(now: Tensor, actions: Tensor, following: Tensor) -> Tensor:
    return now[..., 0] + 10 * following[..., 0]


@pytest.mark.parametrize("name", ["mopo", "mbpo", "mbrcsl", "cocoa_iql"])
def test_ends_and_known_rewards_are_told_by_observations_in_the_environments_units(name: str) -> None:
    """Walker2d ends at a height outside of (0.8, 2); the model sees heights less 1.25, in tenths.

    As `normalization=observations` sets the normaliser, or a run that was normalised and is started from, whatever the
    option says then.
    """
    spec = Spec.of(plane_data(50)).posed_by("Walker2d-v5")
    agent = ALGORITHMS[name](spec, **MODELS, reward_function=f"{__name__}:height")
    seen, model = torch.tensor([[0.0, 0.0], [-4.0, 0.0], [-5.0, 0.0]]), agent.model
    assert model.terminates(seen).tolist() == [True, True, True]
    agent.normalizer.mean.copy_(torch.tensor([1.25, 0.0]))
    agent.normalizer.scale.copy_(torch.tensor([0.1, 0.1]))
    assert model.terminates(seen).tolist() == [False, False, True]
    rewards = model.rewards_of(seen, seen, seen.flip(0))
    torch.testing.assert_close(rewards, torch.tensor([1.25 + 7.5, 0.85 + 8.5, 0.75 + 12.5]))


@pytest.mark.parametrize("name", ["mopo", "morel", "mac"])
def test_what_values_may_be_is_of_the_data_also_where_a_critic_came_along(name: str) -> None:
    data = plane_data(120)
    data = data.replace(rewards=data.rewards - 5 - data.rewards.max())
    agents = [ALGORITHMS[name](Spec.of(data), **({} if name == "mac" else MODELS)) for _ in range(2)]
    agents[1].rewards_fixed = True  # as `init=` leaves it
    for agent in agents:
        agent.prepare(data)
    assert float(agents[0].limits[0]) < 0
    assert torch.equal(agents[0].limits, agents[1].limits)


def rambo(weights: str) -> Learner:
    """Trained beyond its first imagined rows."""
    data, sizes = plane_data(120), {"model_updates": 4, "rollouts": 20, "rollout_length": 3, "hidden": (8, 6)}
    agent = RAMBO(data, **MODELS, **sizes, model_weights=weights).fresh(3)
    ready = agent.prepare(data)
    sources = agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns)))
    found = Learner([agent], [3], sources, batch_size=20, planned_steps=50)
    found.run(8)
    return found


def test_rows_are_weighed_in_the_model_of_an_algorithm_as_in_a_model_alone() -> None:
    data, plain, weighed = plane_data(120), rambo("uniform"), rambo("near_best")
    agent, source = weighed.agent, weighed.sources[MODEL]
    assert agent.required_columns == (*RAMBO.required_columns, WEIGHTS)
    assert plain.agent.required_columns == RAMBO.required_columns
    torch.testing.assert_close(source.store[WEIGHTS], torch.from_numpy(near_best(data)))
    name = "agent/model.network.weights.0"
    assert not torch.equal(plain.state(0)[name], weighed.state(0)[name])
    assert any("of equal weight" in note for note in agent.notes(data))

    rows = source.gather(torch.arange(48).view(12, 4))
    noise = {"adversary": torch.zeros(20, 7), "adversary_member": torch.zeros(20, 1)}
    loss, metrics = agent.adversary_loss({MODEL: rows, MAIN: {"observations": torch.zeros(20, 2)}}, noise)
    fitted = agent.model.loss(rows, rows[WEIGHTS])[0]
    torch.testing.assert_close(loss - agent.config.adversary_weight * metrics["adversary"], fitted)


@pytest.mark.parametrize("name", ["mbpo", "pets"])
@pytest.mark.parametrize("option", ["model_weights", "model_patience", "model_judged_by", "model_recalibrated"])
def test_a_model_that_is_learned_while_acting_has_no_options_of_learning_from_a_dataset(name: str, option: str) -> None:
    with refused(option, "unknown"):
        ALGORITHMS[name].configure(**{option: 3})


@pytest.mark.parametrize("name", ["mbpo", "pets"])
def test_a_model_that_comes_from_a_run_predicts_the_same_after_the_first_rows(name: str) -> None:
    data = plane_data(60)
    learned = ALGORITHMS["dynamics"](data, **MODELS, model_normalize_targets=True).fresh(0)
    learned.prepare(data)
    agent = ALGORITHMS[name](data, **MODELS, model_normalize_targets=True).fresh(1)
    columns = ("observations", "actions", "rewards", "next_observations")
    rows = {column: torch.from_numpy(getattr(data, column)) * 3 + 1 for column in columns}
    first = agent.updates()[0].change

    fresh = dict(first(rows, {})[0])
    assert "model.network.weights.0" not in fresh  # networks are as they were drawn
    torch.testing.assert_close(fresh["model.input_mean"][:2], rows["observations"].mean(0))

    agent.model.load_state_dict(learned.model.state_dict())  # as init= does
    wanted = agent.model.predict_all(rows["observations"], rows["actions"])
    agent.load_state_dict({**agent.state_dict(), **first(rows, {})[0]})
    assert not torch.equal(agent.model.input_mean, learned.model.input_mean)
    for one, other in zip(agent.model.predict_all(rows["observations"], rows["actions"]), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mopo", "mbrcsl", "pets", "cocoa_iql"])
def test_a_model_predicts_the_same_in_an_agent_that_would_have_learned_it_in_other_units(name: str) -> None:
    data = plane_data(60)
    learned = ALGORITHMS["dynamics"](data, **MODELS, model_normalize_targets=True).fresh(0)
    learned.prepare(data)
    agent = ALGORITHMS[name](data, **MODELS, model_normalize_targets=False).fresh(1)
    agent.model.load_state_dict(learned.model.state_dict())  # as init= does
    states, actions = torch.randn(2, 5, 2), torch.rand(5, 3, 4, 2)
    for one, other in zip(*(m.predict_all(*states) for m in (agent.model, learned.model)), strict=True):
        assert torch.equal(one, other)
    draws = torch.zeros(5, 2, dtype=torch.int64)
    found, wanted = (m.sums_of(states[0], actions, draws, Objective(6))[0] for m in (agent.model, learned.model))
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", ["mopo", "mbrcsl", "cocoa_iql"])
def test_a_model_of_observations_as_they_are_is_refused_where_they_are_normalised(name: str) -> None:
    data, kind = plane_data(50), ALGORITHMS[name]
    agent = kind(data, **MODELS, normalization="observations")
    agent.model.fitted.fill_(True)  # as init= leaves it
    with pytest.raises(ConfigError, match=r"set algo\.normalization=none, or leave out init="):
        agent.prepare(data)
    agent.normalizer.fixed = True  # a run with a policy: its model reads what it was normalised by
    agent.prepare(data)
