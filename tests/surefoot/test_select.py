"""`surefoot select`: the ranking, what it says where it can't tell, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import torch

from surefoot.cli import main
from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.data import Dataset, save
from surefoot.data.prepare import discounted_returns
from surefoot.evaluation import Bandit, plots
from surefoot.offline.evaluation import least_squares_q
from surefoot.runs.summary import data_return
from surefoot.studies import select as selecting
from surefoot.studies import select_model
from surefoot.studies.select_behaviour import KNOWN_DENSITY, Behaviour
from surefoot.studies.select_model import ModelJudge, ModelJudgeConfig, notes, select_by_model

Capture = pytest.CaptureFixture[str]


SMALL = least_squares_q.LeastSquaresQConfig(discount=0.9, features=100)
"""The problem is one line."""


def gain(k: float) -> Policy:
    """a = tanh(-k x), nearly -k x."""
    actor = DeterministicActor(1, 1, (2,))
    with torch.no_grad():
        for weight, values in zip(actor.mlp.weights, ([1.0, -1.0], [-k, k]), strict=True):
            weight.copy_(torch.tensor(values).reshape(weight.shape))
        for bias in actor.mlp.biases:
            bias.zero_()
    return Policy(actor, Normalizer(1), torch.tensor([-1.0]), torch.tensor([1.0]))


def regulator(episodes: int = 120, seed: int = 0, noise: float = 0.4) -> Dataset:
    """x' = 0.9 x + 0.5 a + noise, r = -x^2, by a weak controller with noise; 20 steps."""
    generator, rows = np.random.default_rng(seed), []
    x = generator.uniform(-1, 1, episodes)
    for _ in range(20):
        a = np.clip(-0.4 * x + noise * generator.standard_normal(episodes), -1, 1)
        y = 0.9 * x + 0.5 * a + 0.05 * generator.standard_normal(episodes)
        rows.append((x, a, -(x**2), y))
        x = y
    x, a, r, y = (np.stack(column, 1).reshape(-1, 1).astype(np.float32) for column in zip(*rows, strict=True))
    last = np.arange(len(x)) % 20 == 19
    return Dataset(
        x, a, r[:, 0], y, np.zeros(len(x), bool), last, np.arange(len(x)) // 20, np.ones(len(x), bool), name="line"
    )


GAINS = {"good": 1.0, "fair": 0.3, "none": 0.0, "wrong": -0.2}


def chosen(**returns: float) -> list[selecting.Candidate]:
    known = {name: np.array([value]) for name, value in returns.items()}
    return [selecting.Candidate(name, name, gain(k), known.get(name)) for name, k in GAINS.items()]


def test_policies_are_ranked_as_they_are_and_the_best_is_said_to_be() -> None:
    truth = {"good": 0.0, "fair": -1.0, "none": -2.0, "wrong": -3.0}
    found = selecting.select(chosen(**truth), regulator(), SMALL, truth=True)
    assert [one.label for one in found.estimates] == list(GAINS)
    assert found.tied == []
    assert found.sentence().startswith("good is the best of these")
    alone = selecting.dataclasses.replace(found, estimates=found.estimates[:1])
    assert alone.sentence().startswith("good is the only policy")
    assert found.against_truth()["rank_correlation"] == pytest.approx(1)
    assert found.against_truth()["regret_at_1"] == 0
    assert found.estimates[0].mean > found.data_value > found.estimates[-1].mean
    assert all(one.low < one.mean < one.high for one in found.estimates)
    assert found.estimates[0].doubly_robust > found.estimates[-1].doubly_robust
    assert all(1 <= one.effective_episodes <= 120 for one in found.estimates)


def test_copies_of_one_policy_can_not_be_told_apart() -> None:
    pair = [selecting.Candidate(f"twin {number}", "twin", gain(0.5)) for number in (1, 2)]
    found = selecting.select(pair, regulator(30), SMALL)
    mean, low, high = found.difference(*found.estimates)
    assert low <= 0 <= high
    assert mean == 0
    assert found.sentence().startswith("cannot tell: twin")
    assert found.against_truth() is None


def test_an_estimate_above_all_that_the_data_hold_is_not_supported() -> None:
    estimates = selecting.select(chosen(), regulator(), SMALL)
    assert not estimates.best.implausible
    above = [selecting.dataclasses.replace(one, implausible=True) for one in estimates.estimates]
    assert "none is supported" in selecting.dataclasses.replace(estimates, estimates=above).sentence()


def test_what_is_set_aside_is_named_and_the_best_is_one_of_the_others() -> None:
    found = selecting.select(chosen(), regulator(), SMALL)
    good, fair, none, wrong = found.estimates
    above = selecting.dataclasses.replace(fair, members=good.members + 50, implausible=True)
    three = selecting.dataclasses.replace(found, estimates=[good, none, above])
    reason = "; set aside, since they lie above the best return in the data: fair"
    assert three.tied == []
    assert three.sentence() == (
        f"good is the best of those that the data support by its estimate, and its interval excludes the others{reason}"
    )
    two = selecting.dataclasses.replace(found, estimates=[good, above])
    assert two.sentence() == f"good is the only one that the data support{reason}"
    twin = selecting.dataclasses.replace(good, label="twin")
    even = selecting.dataclasses.replace(found, estimates=[good, twin, wrong, above])
    assert "good has the highest lower bound of those that the data support, but 1 of 3 others" in even.sentence()
    assert even.sentence().endswith(f"(twin){reason}")


@pytest.mark.parametrize("shift", [100.0, -100.0])
def test_bounds_are_of_all_data_and_not_of_the_part_that_is_judged_on(
    monkeypatch: pytest.MonkeyPatch, shift: float
) -> None:
    data = regulator(200)
    config = dataclasses.replace(SMALL, rows=240)  # twelve episodes
    seen = {float(one) for one in least_squares_q.thinned(data, config.rows, 0).observations[:, 0]}
    unseen = [number for number in range(200) if float(data.observations[20 * number, 0]) not in seen]
    rewards = data.rewards.copy()
    rewards[data.episode_ids == unseen[0]] = np.sign(shift) * 50
    fit, calls = least_squares_q.LeastSquaresJudge.fit, 0

    def elsewhere(judge: least_squares_q.LeastSquaresJudge, following: np.ndarray) -> least_squares_q.Critics:
        nonlocal calls
        critics, calls = fit(judge, following), calls + 1
        critics.weights[..., -1] += shift * (calls % 2 == 0)  # the policy's, after the data's own
        return critics

    monkeypatch.setattr(least_squares_q.LeastSquaresJudge, "fit", elsewhere)
    without = selecting.select(chosen()[:1], data, config)
    assert (without.best.implausible, without.best.impossible) == (shift > 0, shift < 0)
    found = selecting.select(chosen()[:1], data.replace(rewards=rewards), config)
    assert found.best.believable
    assert found.best.mean == without.best.mean, "the part is the same"
    if shift > 0:
        assert found.best_in_data > 50 * (1 - 0.9**20) / (1 - 0.9) - 5


def test_where_critics_fall_below_what_rewards_allow_they_have_failed_and_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = regulator()
    floor = float(data.rewards.min()) / (1 - SMALL.discount)
    assert selecting.least_value(data, SMALL.discount) == pytest.approx(floor)
    assert selecting.least_value(data.replace(rewards=data.rewards + 10), SMALL.discount) == 0
    sound = selecting.select(chosen(), data, SMALL)
    assert all(one.believable for one in sound.estimates)
    fit = least_squares_q.LeastSquaresJudge.fit

    def diverged(judge: least_squares_q.LeastSquaresJudge, following: np.ndarray) -> least_squares_q.Critics:
        critics = fit(judge, following)
        actions = np.arctanh(np.clip(following[:50], -0.999, 0.999)) / data.next_observations[:50]
        if np.allclose(actions, -GAINS["good"], atol=0.05):  # on the best policy alone
            critics.weights[..., -1] += 2 * floor
        return critics

    monkeypatch.setattr(least_squares_q.LeastSquaresJudge, "fit", diverged)
    found = selecting.select(chosen(), data, SMALL)
    assert [one.label for one in found.estimates if one.impossible] == ["good"]
    assert found.estimates[-1].label == "good"
    assert not found.estimates[-1].implausible
    assert [one.label for one in found.tied] == ["good"], "it may be as good as any"
    assert found.sentence().endswith("the critics fail on 1 of these: below what the data's rewards allow")
    last = selecting.dataclasses.replace(found, estimates=found.estimates[-1:])
    assert "of 1, below the least that its rewards allow" in last.sentence()


def test_intervals_widen_where_the_critics_misjudge_the_data_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    fair = selecting.select(chosen(), regulator(), SMALL)
    own = least_squares_q.LeastSquaresJudge.data

    def biased(judge: least_squares_q.LeastSquaresJudge) -> least_squares_q.Critics:
        critics = own(judge)
        critics.weights[..., -1] += 3.0  # the constant
        return critics

    monkeypatch.setattr(least_squares_q.LeastSquaresJudge, "data", biased)
    found = selecting.select(chosen(), regulator(), SMALL)
    assert found.factor > 2 > fair.factor >= 1
    widths = [one.estimates[0].high - one.estimates[0].low for one in (found, fair)]
    assert widths[0] > 2 * widths[1]
    for label in GAINS:  # critics that say 3 too much of the data say it of policies, and it is taken off
        before, after = (next(e.mean for e in one.estimates if e.label == label) for one in (fair, found))
        assert after - before == pytest.approx(-3 * (1 - 0.9**20), abs=1e-6)  # episodes are cut off after 20 steps


@pytest.mark.parametrize("unit", [1.0, 50.0])
def test_a_known_density_is_of_actions_in_their_own_units(unit: float) -> None:
    """A policy that is the behaviour itself has ratios near 1, however long episodes are."""
    data = regulator(60)
    kept = np.concatenate([20 * k + np.arange(5 + k % 16) for k in range(60)])
    x, a = data.observations[kept], data.actions[kept].astype(np.float64)
    told = -0.5 * ((a + 0.4 * x) / 0.4) ** 2 - np.log(0.4 * unit) - 0.5 * np.log(2 * np.pi)
    told[np.abs(a) >= 1] = -0.5 * ((a - np.tanh(-0.4 * x)) / 0.4)[np.abs(a) >= 1] ** 2 - np.log(0.4 * unit) - 0.92
    ids = np.arange(60).repeat([5 + k % 16 for k in range(60)])
    columns = {name: getattr(data, name)[kept] for name in ("rewards", "next_observations", "terminations", "valid")}
    short = data.replace(
        **columns,
        observations=x,
        actions=(unit * a).astype(np.float32),
        truncations=np.append(np.diff(ids) != 0, True),
        episode_ids=ids,
        extras={KNOWN_DENSITY: told[:, 0].astype(np.float32)},
    )
    policy = gain(0.4)
    policy.action_low.mul_(unit)
    policy.action_high.mul_(unit)
    (found,) = selecting.select([selecting.Candidate("itself", "itself", policy)], short, SMALL).estimates
    assert found.effective_episodes > 45


def test_right_ratios_make_up_for_wrong_critics() -> None:
    """Doubly robust values are of the policy with the behaviour's noise, in the ratios and in the critics' V."""
    data = regulator(600, noise=0.25)
    data = data.replace(terminations=data.truncations, truncations=data.terminations)
    x, a = data.observations.astype(np.float64), data.actions.astype(np.float64)
    told = -0.5 * ((a + 0.4 * x) / 0.25) ** 2 - np.log(0.25) - 0.5 * np.log(2 * np.pi)
    data = data.replace(extras={KNOWN_DENSITY: told[:, 0].astype(np.float32)})
    low, high = np.array([-1.0]), np.array([1.0])
    judge = least_squares_q.LeastSquaresJudge(data, low, high, config=SMALL)
    lies = least_squares_q.LeastSquaresJudge(
        data.replace(rewards=-30 * data.actions[:, 0] ** 2), low, high, config=SMALL
    )
    policy = gain(0.55)
    here, after = (selecting.actions_of(policy, one) for one in (data.observations, data.next_observations))
    wrong = lies.fit(after)
    robust, _, behind = Behaviour(judge).estimates(wrong, here, after)
    generator, y, truth = np.random.default_rng(1), np.random.default_rng(2).uniform(-1, 1, 40_000), 0.0
    for step in range(20):
        truth -= 0.9**step * float((y**2).mean())
        action = np.tanh(-0.55 * y) + 0.25 * generator.standard_normal(len(y))
        y = 0.9 * y + 0.5 * np.clip(action, -1, 1) + 0.05 * generator.standard_normal(len(y))
    said = wrong.value(here[data.episode_starts[:-1]]).mean()
    assert behind > 100
    assert said < truth - 2, "the critics are far off"
    assert robust == pytest.approx(truth, abs=0.3), (robust, truth, said)


def test_the_bandit_tries_in_order_and_then_what_looks_best() -> None:
    bandit = Bandit(3, 0.0, 1.0)
    told = [0.2, 0.9, 0.5]
    tries = []
    for _ in range(40):
        arm = bandit.next()
        tries.append(arm)
        bandit.tell(arm, told[arm])
    assert tries[:3] == [0, 1, 2]
    assert bandit.answer == 1
    assert tries.count(1) > tries.count(2) > tries.count(0)
    short = Bandit(3, 0.0, 1.0)
    short.tell(short.next(), -5.0)
    assert short.answer == 0, "one that was never tried is never the answer"
    with pytest.raises(ConfigError, match="nothing to choose from"):
        Bandit(0, 0.0, 1.0)


def test_policies_of_other_bounds_are_refused_with_where_bounds_come_from(tmp_path: pathlib.Path) -> None:
    files = [tmp_path / name for name in ("one.safetensors", "two.safetensors")]
    wider = gain(1.0)
    wider.action_high += 0.5
    for policy, file in zip((gain(1.0), wider), files, strict=True):
        policy.save(file)
    with pytest.raises(
        ConfigError, match=r"bounds differ \(without a simulator, bounds are -1 and 1, or where the data"
    ):
        selecting.candidates([str(file) for file in files])


def test_the_command_ranks_policy_files_and_draws(tmp_path: pathlib.Path, capsys: Capture) -> None:
    save(regulator(), tmp_path / "line.hdf5")
    files = []
    for name, k in GAINS.items():
        gain(k).save(tmp_path / f"{name}.safetensors")
        files.append(str(tmp_path / f"{name}.safetensors"))
    arguments = ["select", *files, "--dataset", str(tmp_path / "line.hdf5"), "--discount", "0.9"]
    assert main([*arguments, "--json", "-o", str(tmp_path / "picture.png")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [pathlib.Path(one["label"]).stem for one in found["policies"]] == list(GAINS)
    assert found["can_tell"] is True
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert main(["select", files[0], files[3], *arguments[5:]]) == 0
    assert "is the best of these" in capsys.readouterr().out
    for wrong, words in (
        (["--truth"], "was not evaluated in a simulator"),
        (["--env", "Hopper-v5"], "say how many with --episodes"),
        (["--episodes", "0"], "--episodes is 0"),
        (["-o", "picture.svg"], "the picture is a .png"),
        (
            ["--discount", "1"],
            "--discount is 1; critics need one in [0, 1): whole episodes are judged by",
        ),
    ):
        assert main([*arguments, *wrong]) == 2
        assert words in capsys.readouterr().err
    assert main(["select", files[0], *arguments[1:]]) == 2
    assert "is named twice" in capsys.readouterr().err
    few = tmp_path / "few.hdf5"
    save(regulator(3), few)
    assert main(["select", *files, "--dataset", str(few)]) == 2
    assert "3 episodes are too few" in capsys.readouterr().err
    assert main(["select", str(tmp_path), "--dataset", str(few)]) == 2
    assert "not a run folder" in capsys.readouterr().err


MODEL = ModelJudgeConfig(members=3, hidden=(32,), updates=1_200, starts=120)


def driven(k: float) -> float:
    """Mean return of 20 steps of `regulator`'s line from its first states, under a = tanh(-k x)."""
    data = regulator()
    x, total = data.observations[data.episode_starts[:-1], 0], 0.0
    for _ in range(20):
        total += float(np.mean(-(x**2)))
        x = 0.9 * x + 0.5 * np.tanh(-k * x)
    return total


def test_imagined_episodes_return_what_real_ones_do_and_rank_the_policies() -> None:
    truth = {name: driven(k) for name, k in GAINS.items()}
    found = select_by_model(chosen(**truth), regulator(noise=0.2), MODEL, truth=True)
    assert [one.label for one in found.estimates] == list(GAINS)
    assert found.method == "model"
    assert found.discount == 1
    assert found.against_truth() == {"rank_correlation": pytest.approx(1), "regret_at_1": 0, "regret_at_3": 0}
    for one in found.estimates:
        assert one.mean == pytest.approx(truth[one.label], rel=0.2), one.label
    assert found.data_estimate == pytest.approx(found.data_value, rel=0.15)
    assert found.sentence().startswith("good is the best of these")


def test_imagined_episodes_end_where_the_environments_do() -> None:
    data = regulator(40)
    judge = ModelJudge(data, np.array([-1.0]), np.array([1.0]), 0, MODEL)
    whole = judge.of(gain(0.0))
    assert whole.shape == (3, 40)
    judge.model.terminates = lambda following: following[..., 0].abs() < 10  # after the first step
    starts = data.observations[data.episode_starts[:-1][judge.episodes], 0]
    assert judge.of(gain(0.0)).mean(0) == pytest.approx(-(starts**2), abs=0.2)
    assert whole.mean() < 2 * judge.of(gain(0.0)).mean()
    said, told = judge.recorded()  # recorded actions are taken to the recorded end
    assert said.mean() == pytest.approx(told.mean(), rel=0.2)
    ended = data.replace(terminations=data.truncations, truncations=np.zeros(len(data), bool))
    assert notes(data) == []
    assert "where is not known" in notes(ended)[0]
    assert notes(ended.replace(env_id="Pendulum-v1")) == []
    rows = np.arange(15, len(data))  # of the first episode five steps are left
    assert "were cut off after 5 to 20 steps, and policies are followed for 20" in notes(data.select_rows(rows))[0]


def test_the_command_judges_by_a_model(
    tmp_path: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select_model, "ModelJudgeConfig", lambda **given: dataclasses.replace(MODEL, **given))
    save(regulator(noise=0.2), tmp_path / "line.hdf5")
    for name in ("good", "wrong"):
        gain(GAINS[name]).save(tmp_path / f"{name}.safetensors")
    arguments = ["select", str(tmp_path / "wrong.safetensors"), str(tmp_path / "good.safetensors")]
    arguments += ["--dataset", str(tmp_path / "line.hdf5"), "--method", "model"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "The model gave the recorded actions" in shown
    assert "Returns of whole episodes" in shown
    assert "doubly_robust" not in shown
    drawn: list[str] = []
    monkeypatch.setattr(plots, "save_png", lambda figure, path: drawn.append(figure.axes[0].get_xlabel()))
    assert main([*arguments, "-o", str(tmp_path / "picture.png")]) == 0
    assert drawn == ["return of whole episodes, 95 % interval"]
    capsys.readouterr()
    assert main([*arguments, "--json", "--discount", "0.9"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["method"] == "model"
    assert found["discount"] == 0.9
    assert [pathlib.Path(one["label"]).stem for one in found["policies"]] == ["good", "wrong"]
    assert found["policies"][0]["doubly_robust"] is None
    assert found["notes"] == []
    save(cut_at_other_steps := regulator(noise=0.2).select_rows(np.arange(15, 2_400)), tmp_path / "line.hdf5")
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == notes(cut_at_other_steps.replace(name=arguments[4]))
    assert main([*arguments, "--discount", "1.5"]) == 2
    assert "discount" in capsys.readouterr().err


def test_the_datas_return_runs_past_time_limits_and_is_that_of_select() -> None:
    data, spec = regulator(), Spec(1, 1, (-1.0,), (1.0,))
    found, selected = data_return(data, spec), selecting.select(chosen()[:1], data)
    assert (found["mean"], found["best"]) == (selected.data_value, selected.best_in_data)
    assert found["past_time_limits"]
    cut = discounted_returns(data)
    assert found["mean"] < cut.mean()  # every step costs
    few = data_return(data.select_episodes(np.arange(4)), spec)
    assert (few["mean"], few["past_time_limits"]) == (cut[:4].mean(), False)
    wild = data.next_observations.copy()
    wild[-1] = 1e38
    assert np.isfinite(data_return(data.replace(next_observations=wild), spec)["mean"])
