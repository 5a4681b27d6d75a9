"""Corruption does exactly what RIQL's protocol says, to the named column of the masked rows and no more."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data.corrupt import ALIASES, COLUMNS, Victim, corrupt
from surefoot.data.dataset import BEST_RETURN, Dataset
from surefoot.data.prepare import best_return, scale_actions

FIELDS = ("observations", "actions", "rewards", "next_observations", "terminations", "truncations",
          "episode_ids", "valid")  # fmt: skip


def make_dataset(rows: int = 4000, seed: int = 0) -> Dataset:
    """Episodes of 100 steps; dimensions of unlike size, so that a missing std shows."""
    rng = np.random.default_rng(seed)
    path = rng.standard_normal((rows + rows // 100, 3)) * [0.1, 1.0, 20.0] + [5.0, 0.0, -100.0]
    path = path.reshape(-1, 101, 3).astype(np.float32)  # one more observation than steps in each episode
    ends = np.arange(rows) % 100 == 99
    return Dataset(
        observations=np.ascontiguousarray(path[:, :-1].reshape(rows, 3)),
        actions=rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        rewards=(3 + rng.standard_normal(rows)).astype(np.float32),
        next_observations=np.ascontiguousarray(path[:, 1:].reshape(rows, 3)),
        terminations=ends & (np.arange(rows) % 200 < 100),
        truncations=ends & (np.arange(rows) % 200 >= 100),
        episode_ids=np.arange(rows) // 100,
        valid=np.ones(rows, bool),
        name="synthetic",
        attributes={"licence": "MIT"},
    )


class Linear:
    """Q_i(s, a) = s . w + a . v + i, whose gradient is known; the policy is a linear map of s."""

    def __init__(self, gain: float = 1.0) -> None:
        self.w = torch.tensor([0.5, -2.0, 0.1])
        self.v = torch.tensor([-1.0, 3.0])
        self.gain = gain * torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])

    def q_values(self, observations: Tensor, actions: Tensor) -> Tensor:
        return torch.arange(4.0)[:, None] + observations @ self.w + actions @ self.v

    def policy(self, observations: Tensor) -> Tensor:
        return observations @ self.gain


class Network:
    """Three small random critics and a policy: nothing that an attack could solve in closed form."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.shift, self.size = torch.tensor([5.0, 0, -100]), torch.tensor([0.1, 1, 20])
        self.critics = [nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1)) for _ in range(3)]
        self.actor = nn.Sequential(nn.Linear(3, 2), nn.Tanh())

    def q_values(self, observations: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat([(observations - self.shift) / self.size, actions], -1)
        return torch.stack([critic(inputs)[..., 0] for critic in self.critics])

    def policy(self, observations: Tensor) -> Tensor:
        return self.actor((observations - self.shift) / self.size)


ATTACKS = [(element, mode) for element in COLUMNS for mode in ("random", "adversarial")]


@pytest.mark.parametrize(("element", "mode"), ATTACKS)
def test_only_the_named_column_of_the_masked_rows_changes(element: str, mode: str) -> None:
    dataset = make_dataset(1000)
    before = {field: getattr(dataset, field).copy() for field in FIELDS}
    done = corrupt(dataset, element, mode, rate=0.4, scale=0.7, seed=3, victim=Network())  # type: ignore[arg-type]
    for field in FIELDS:
        after = getattr(done.dataset, field)
        assert getattr(dataset, field).tobytes() == before[field].tobytes(), "the input was changed"
        if field != COLUMNS[element]:
            assert after.tobytes() == before[field].tobytes()
            continue
        assert after.dtype == before[field].dtype
        assert after[~done.mask].tobytes() == before[field][~done.mask].tobytes()
        assert (after[done.mask] != before[field][done.mask]).reshape(done.mask.sum(), -1).any(1).all()
        np.testing.assert_allclose(after, before[field] + done.noise, rtol=1e-6)
    assert not done.noise[~done.mask].any()


def test_the_mask_is_binomial_with_the_given_rate() -> None:
    for element in COLUMNS:
        mask = corrupt(make_dataset(20_000), element, rate=0.3, seed=1, mode="random").mask
        assert abs(mask.sum() - 6000) <= 4 * math.sqrt(20_000 * 0.3 * 0.7)
        halves = mask[:10_000].sum(), mask[10_000:].sum()
        assert abs(halves[0] - halves[1]) <= 4 * math.sqrt(20_000 * 0.3 * 0.7)
    counts = [int(corrupt(make_dataset(1000), rate=0.3, seed=seed).mask.sum()) for seed in range(60)]
    assert np.var(counts) == pytest.approx(1000 * 0.3 * 0.7, rel=0.6)  # binomial, not fixed


def test_an_exact_count_is_exact() -> None:
    for rate, count in [(0.3, 300), (0.0, 0), (1.0, 1000), (0.0014, 1)]:
        assert corrupt(make_dataset(1000), rate=rate, exact_count=True).mask.sum() == count


def test_equal_seeds_agree_and_other_seeds_and_elements_have_other_masks() -> None:
    dataset = make_dataset(1000)
    first, again, other = (corrupt(dataset, "obs", seed=seed) for seed in (5, 5, 6))
    assert first.dataset.observations.tobytes() == again.dataset.observations.tobytes()
    assert first.report == again.report
    assert (first.mask != other.mask).any()
    masks = [corrupt(dataset, element, seed=5).mask for element in COLUMNS]
    for i in range(4):
        for j in range(i):  # independent: both attacked in .09 of the rows
            assert abs((masks[i] & masks[j]).sum() - 90) < 4 * math.sqrt(1000 * 0.09 * 0.91)
    attack = corrupt(dataset, "dyn", "adversarial", seed=5, victim=Network())
    twice = corrupt(dataset, "dyn", "adversarial", seed=5, victim=Network())
    assert attack.noise.tobytes() == twice.noise.tobytes()
    assert np.array_equal(attack.mask, corrupt(dataset, "dyn", seed=5).mask)


@pytest.mark.parametrize("element", ["observations", "actions", "dynamics"])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_random_noise_is_uniform_within_scale_standard_deviations(element: str, scale: float) -> None:
    dataset = make_dataset(20_000)
    done = corrupt(dataset, element, rate=0.5, scale=scale, seed=2)
    clean = getattr(dataset, COLUMNS[element])
    z = (done.noise / clean.std(axis=0, dtype=np.float64))[done.mask]
    assert np.abs(z).max() <= scale * (1 + 1e-12)
    assert np.abs(z).max() > 0.99 * scale
    error = 4 * scale * math.sqrt(1 / 3 / len(z))
    assert np.abs(z.mean(0)).max() < error
    np.testing.assert_allclose(z.var(0), scale**2 / 3, rtol=0.05)
    for dimension in z.T:
        assert scipy.stats.kstest(dimension, "uniform", (-scale, 2 * scale)).pvalue > 1e-3
    correlation = np.corrcoef(z.T)[np.triu_indices(z.shape[1], 1)]
    assert np.abs(correlation).max() < 4 / math.sqrt(len(z))


def test_random_rewards_are_uniform_on_thirty_scales_whatever_they_were() -> None:
    dataset = make_dataset(20_000)
    done = corrupt(dataset, "rewards", rate=0.5, scale=0.5, seed=4)
    new, old = done.dataset.rewards[done.mask], dataset.rewards[done.mask]
    assert np.abs(new).max() <= 15
    assert new.std() == pytest.approx(30 * 0.5 / math.sqrt(3), rel=0.03)
    assert scipy.stats.kstest(new, "uniform", (-15, 30)).pvalue > 1e-3
    assert abs(np.corrcoef(new, old)[0, 1]) < 4 / math.sqrt(len(new))


def test_adversarial_rewards_are_the_negative_multiple_exactly() -> None:
    dataset = make_dataset(1000)
    done = corrupt(dataset, "rewards", "adversarial", scale=2.0)
    assert np.array_equal(done.dataset.rewards[done.mask], -2 * dataset.rewards[done.mask])


def test_against_a_linear_critic_the_attack_goes_to_the_known_vertex() -> None:
    dataset, victim = make_dataset(2000), Linear()
    descents = {
        "observations": victim.w,
        "actions": victim.v,
        "dynamics": victim.w + victim.gain @ victim.v,  # through the policy too
    }
    assert (descents["dynamics"].sign() != descents["observations"].sign()).any()
    for element, gradient in descents.items():
        done = corrupt(dataset, element, "adversarial", scale=0.5, seed=1, victim=victim)
        std = getattr(dataset, COLUMNS[element]).std(axis=0, dtype=np.float64)
        z = (done.noise / std)[done.mask]
        vertex = -0.5 * np.sign(gradient.numpy())
        start = corrupt(dataset, element, "random", scale=0.5, seed=1).noise[done.mask] / std
        # 100 steps of 0.01 scale travel one scale: as far as the vertex, or one scale from the start.
        expected = np.where(vertex > 0, np.minimum(start + 0.5, 0.5), np.maximum(start - 0.5, -0.5))
        np.testing.assert_allclose(z, expected, atol=1e-9)
        assert np.isclose(z, vertex).mean() > 0.4


@pytest.mark.parametrize("element", ["observations", "actions", "dynamics"])
def test_an_adversary_lowers_the_value_more_than_random_noise_of_the_same_size(element: str) -> None:
    dataset, victim = make_dataset(1000), Network()
    attack = corrupt(dataset, element, "adversarial", seed=1, victim=victim)
    random = corrupt(dataset, element, "random", seed=1, victim=victim)
    values, noise = attack.report["victim"], random.report["victim"]
    assert values["mean_value_before"] == noise["mean_value_before"]
    assert values["mean_value_after"] < noise["mean_value_after"]
    drop = values["mean_value_before"] - values["mean_value_after"]
    assert drop > 3 * abs(values["mean_value_before"] - noise["mean_value_after"])
    std = getattr(dataset, COLUMNS[element]).std(axis=0, dtype=np.float64)
    assert np.abs(attack.noise / std).max() <= 1 + 1e-12
    assert all(p.grad is None for critic in victim.critics for p in critic.parameters())


def test_the_reported_values_are_the_victims_own() -> None:
    dataset, victim = make_dataset(5000), Linear()
    done = corrupt(dataset, "actions", "adversarial", seed=1, rate=0.9, victim=victim)
    for when, data in {"before": dataset, "after": done.dataset}.items():
        tensors = torch.as_tensor(data.observations), torch.as_tensor(data.actions)
        mean = victim.q_values(*tensors).mean(0)[torch.as_tensor(done.mask)].double().mean().item()
        assert done.report["victim"][f"mean_value_{when}"] == pytest.approx(mean, rel=1e-6)


def test_progress_counts_the_chunks() -> None:
    seen: list[tuple[int, int]] = []
    corrupt(make_dataset(5000), "act", "adversarial", rate=1, victim=Linear(), progress=lambda *x: seen.append(x))
    assert seen == [(1, 2), (2, 2)]


def test_corrupted_actions_are_not_clipped() -> None:
    assert np.abs(corrupt(make_dataset(1000), "actions").dataset.actions).max() > 1


def test_observation_corruption_widens_the_normaliser_as_computed() -> None:
    dataset = make_dataset(20_000)
    done = corrupt(dataset, "observations", rate=0.3, scale=1.0)
    ratio = done.dataset.observations.var(0, dtype=np.float64) / dataset.observations.var(0, dtype=np.float64)
    np.testing.assert_allclose(ratio, 1 + 0.3 / 3, rtol=0.015)


def test_consistent_corruption_reaches_the_copy_in_the_row_before_within_the_episode() -> None:
    dataset = make_dataset(1000)
    done = corrupt(dataset, "observations", consistent=True, seed=2).dataset
    plain = corrupt(dataset, "observations", seed=2)
    assert np.array_equal(done.observations, plain.dataset.observations)
    inner = np.flatnonzero(dataset.episode_ids[:-1] == dataset.episode_ids[1:])
    assert np.array_equal(done.next_observations[inner], done.observations[inner + 1])
    last = np.flatnonzero(dataset.terminations | dataset.truncations)
    assert done.next_observations[last].tobytes() == dataset.next_observations[last].tobytes()
    assert plain.mask[last[:-1] + 1].any()  # so the rows after an episode's end were attacked, too


def test_rows_that_are_not_valid_are_neither_attacked_nor_measured() -> None:
    dataset = make_dataset(1000)
    invalid = dataset.truncations
    wild = dataset.next_observations.copy()
    wild[invalid] = 1e6
    done = corrupt(dataset.replace(valid=~invalid, next_observations=wild), "dynamics", rate=1.0)
    assert np.array_equal(done.mask, ~invalid)
    clean = dataset.next_observations[~invalid]
    np.testing.assert_allclose(done.report["clean_std"], clean.std(0, dtype=np.float64))


def test_a_constant_dimension_stays_constant() -> None:
    dataset = make_dataset(1000)
    flat = dataset.observations.copy()
    flat[:, 1] = 0.1
    done = corrupt(dataset.replace(observations=flat), "observations")
    assert (done.dataset.observations[:, 1] == np.float32(0.1)).all()
    assert json.dumps(done.report, allow_nan=False)


def test_the_report_and_the_dataset_tell_what_was_done() -> None:
    done = corrupt(make_dataset(1000), "obs", rate=0.25, scale=0.5, seed=7)
    report = json.loads(json.dumps(done.report, allow_nan=False))
    expected = {"element": "observations", "mode": "random", "rate": 0.25, "scale": 0.5, "seed": 7,
                "exact_count": False, "consistent": False, "dataset": "synthetic", "rows": 1000}  # fmt: skip
    assert expected.items() <= report.items()
    assert report["attacked"] == done.mask.sum()
    assert len(report["noise"]["std"]) == 3
    assert report["noise"]["std"] == pytest.approx([0.5 / math.sqrt(3)] * 3, rel=0.2)
    assert done.dataset.name == "synthetic (random observations, rate 0.25, scale 0.5, seed 7)"
    assert done.dataset.attributes["licence"] == "MIT"
    both = corrupt(done.dataset, "rewards", "adversarial").dataset
    history = json.loads(both.attributes["corruptions"])
    assert [(entry["element"], entry["mode"]) for entry in history] == [
        ("observations", "random"), ("rewards", "adversarial")
    ]  # fmt: skip
    with pytest.raises(DataError, match="attribute 'corruptions'"):
        corrupt(make_dataset(300).replace(attributes={"corruptions": "yes"}))
    nothing = corrupt(make_dataset(1000), rate=0.0, victim=Linear()).report
    assert (nothing["attacked"], nothing["noise"], nothing["victim"]) == (0, None, None)


def test_actions_are_clipped_for_training_unless_an_attack_moved_them() -> None:
    clean = make_dataset(300)
    low, high = np.full(2, -0.5), np.full(2, 0.5)
    clipped = scale_actions(clean, low, high).actions
    assert np.abs(2 * clean.actions).max() > 1
    assert np.abs(clipped).max() < 1
    for element in ("rewards", "observations", "dynamics"):
        attacked = corrupt(clean, element).dataset
        np.testing.assert_array_equal(scale_actions(attacked, low, high).actions, clipped, err_msg=element)
    untouched = corrupt(clean, "actions", rate=0.0).dataset
    np.testing.assert_array_equal(scale_actions(untouched, low, high).actions, clipped)
    moved = corrupt(corrupt(clean, "actions", scale=3.0).dataset, "rewards").dataset
    np.testing.assert_array_equal(scale_actions(moved, low, high).actions, 2 * moved.actions)
    foreign = clean.replace(attributes={"corruptions": "none known"})
    np.testing.assert_array_equal(scale_actions(foreign, low, high).actions, clipped)


def test_an_attack_on_rewards_drops_the_best_return_which_was_of_others() -> None:
    stated = make_dataset(300).replace(attributes={BEST_RETURN: 9.0, "licence": "MIT"})
    attacked = corrupt(stated, "rewards").dataset
    assert BEST_RETURN not in attacked.attributes
    assert attacked.attributes["licence"] == "MIT"
    assert best_return(attacked) == attacked.episode_returns.max()
    for other in (corrupt(stated, "dynamics").dataset, corrupt(stated, "rewards", rate=0.0).dataset):
        assert best_return(other) == 9


def test_short_names_mean_the_same() -> None:
    dataset = make_dataset(300)
    for short, element in ALIASES.items():
        assert corrupt(dataset, short).report == corrupt(dataset, element).report


class Crooked(Linear):
    """A victim with one method replaced."""

    def __init__(self, **methods: object) -> None:
        super().__init__()
        self.__dict__.update(methods)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"element": "observation"}, ConfigError, "did you mean 'observations'"),
        ({"mode": "randomly"}, ConfigError, "did you mean 'random'"),
        ({"rate": 1.1}, ConfigError, "rate is 1.1"),
        ({"rate": float("nan")}, ConfigError, "rate is nan"),
        ({"scale": 0.0}, ConfigError, "scale is 0.0"),
        ({"scale": float("inf")}, ConfigError, "scale is inf"),
        ({"seed": -1}, ConfigError, "seed is -1"),
        ({"element": "actions", "consistent": True}, ConfigError, "consistent=True"),
        ({"mode": "adversarial"}, ConfigError, "give a victim"),
        ({"mode": "adversarial", "victim": object()}, ConfigError, "no method 'q_values'"),
        ({"scale": 1e39}, DataError, "too large for float32"),
        ({"victim": Crooked(w=torch.zeros(4))}, DataError, "observations of 3 and actions of 2 numbers"),
        ({"victim": Crooked(q_values=lambda o, a: o.sum(-1))}, DataError, r"\(critics, rows\)"),
        ({"element": "dyn", "victim": Crooked(policy=lambda o: o)}, DataError, r"actions of shape \(3, 3\)"),
        (
            {"mode": "adversarial", "victim": Crooked(q_values=lambda o, a: (o.sum(-1) * math.nan)[None])},
            DataError,
            "not finite",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(options: dict[str, object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        corrupt(make_dataset(300), **options)  # type: ignore[arg-type]


def test_the_test_victims_follow_the_protocol() -> None:
    victims: list[Victim] = [Linear(), Network()]
    for victim in victims:
        assert victim.q_values(torch.zeros(5, 3), torch.zeros(5, 2)).shape[1] == 5
