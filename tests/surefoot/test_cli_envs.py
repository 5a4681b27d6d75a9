"""`surefoot envs`, `rollout` and `certify`."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import sys
import types

import pytest
import torch

from surefoot.cli import main
from surefoot.core.actors.heads import GaussianActor
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.envs.systems import SYSTEMS
from surefoot.evaluation import certificate, sequential_certificate
from surefoot.safe.filters import cpp
from surefoot.safety import certify
from surefoot.safety.shield import load_filtered

Capture = pytest.CaptureFixture[str]


def shown(capsys: Capture, *arguments: str) -> object:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_has_every_native_system_and_the_mujoco_tasks(capsys: Capture) -> None:
    rows = {row["name"]: row for row in shown(capsys, "envs", "list")}
    assert {known().alias for known in SYSTEMS.values()} <= set(rows)
    assert rows["native/quadrotor-2d"]["actions"] == 2
    assert rows["surefoot/HopperVelocity-v5"]["constraint"].startswith("speed limit")
    assert [row["name"] for row in shown(capsys, "envs", "list", "dubins")] == ["native/dubins-obstacles"]
    assert main(["envs", "list"]) == 0
    assert "native/bicycle" in capsys.readouterr().out


def test_the_list_tells_the_sizes_of_mujoco_tasks_as_they_are() -> None:
    pytest.importorskip("mujoco")
    from surefoot.envs import describe
    from surefoot.envs.mujoco.tasks import TASKS
    from surefoot.envs.names import MUJOCO_SIZES

    assert list(MUJOCO_SIZES) == list(TASKS)
    for task, sizes in MUJOCO_SIZES.items():
        found = describe(f"surefoot/{task}-v5")
        assert (found.observation_dim, found.action_dim) == sizes, task


def test_the_list_is_kept_until_the_code_changes_and_is_not_believed_when_damaged(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path))
    assert main(["envs", "list", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    monkeypatch.setattr("surefoot.cli.envs._rows", lambda: [])  # not asked again
    assert main(["envs", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    (kept,) = (tmp_path / "listings").iterdir()
    kept.write_text('[{"name": 1}]')
    assert main(["envs", "list"]) == 2  # made anew: of nothing now


@pytest.mark.parametrize("name", SYSTEMS)
def test_info_tells_all_of_a_system(name: str, capsys: Capture) -> None:
    known = SYSTEMS[name]()
    facts = shown(capsys, "envs", "info", known.alias)
    assert [row["parameter"] for row in facts["parameters"]] == [parameter.name for parameter in known.parameters]
    assert set(facts["datasets"]) >= {f"{known.alias}-{kind}" for kind in ("random", "medium", "mixed", "expert")}
    assert facts["reference_low"] < facts["reference_high"]
    assert main(["envs", "info", known.gym_id]) == 0
    assert known.margin_of in capsys.readouterr().out


def test_info_describes_any_other_environment(capsys: Capture) -> None:
    assert shown(capsys, "envs", "info", "Pendulum-v1")["observation_dim"] == 3


def test_check_finds_nothing_wrong_with_ours_and_ends_with_2_for_a_broken_one(
    capsys: Capture, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["envs", "check", "native/pendulum"]) == 0
    assert capsys.readouterr().out == "native/pendulum: nothing is wrong\n"
    (tmp_path / "broken_robots.py").write_text(
        "import gymnasium, numpy as np\n"
        "class Broken(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)\n"
        "    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        return np.zeros(2, np.float32), {}\n"
        "    def step(self, action):\n"
        "        return np.full(2, np.nan, np.float32), 0.0, False, False, {}\n"
        "gymnasium.register('Broken-v0', entry_point=Broken, max_episode_steps=5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["envs", "check", "broken_robots:Broken-v0", "--json"]) == 2
    assert any(finding["level"] == "error" for finding in json.loads(capsys.readouterr().out))
    sys.modules.pop("broken_robots")


def test_rollout_of_a_run_gives_speed_return_cost_and_violations(finished_run: pathlib.Path, capsys: Capture) -> None:
    arguments = ["rollout", str(finished_run), "--env", "native/pendulum", "--envs", "300", "--steps", "50"]
    facts = shown(capsys, *arguments, "--policy-seed", "5")
    assert (facts["episodes"], facts["steps"], facts["diverged"]) == (300, 300 * 50, 0)
    assert facts["returns"]["low"] < facts["returns"]["mean"] < facts["returns"]["high"] < 0
    found = facts["violations"]
    exact = certificate(found["violations"], 300)
    assert (found["low"], found["high"]) == (exact.low, exact.high)
    assert facts["steps_per_second"] > 0
    assert "seed 5 of" in facts["policy"]
    assert shown(capsys, *arguments, "--policy-seed", "5", "--threads", "1")["returns"] == facts["returns"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    for words in ("steps/s", "violation rate", "Clopper-Pearson", "diverged episodes  0", "lowest margin", "score"):
        assert words in out


def test_rollout_of_behaviours_and_of_other_environments(capsys: Capture) -> None:
    facts = shown(capsys, "rollout", "--policy", "expert", "--env", "native/dubins-obstacles", "--envs", "50")
    assert facts["violations"]["violations"] == 0
    assert facts["terminated"] == 50  # all arrive
    assert 95 < facts["normalized"] < 105
    windy = shown(
        capsys, "rollout", "--policy", "expert", "--env", "native/dubins-obstacles", "--envs", "50", "--gap", "wind"
    )
    assert windy["returns"] != facts["returns"]
    facts = shown(capsys, "rollout", "--policy", "random", "--env", "Pendulum-v1", "--envs", "2", "--steps", "5")
    assert (facts["steps"], facts["cost"], facts["violations"], facts["normalized"]) == (10, None, None, None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told(finished_run: pathlib.Path, capsys: Capture) -> None:
    assert main(["rollout", str(finished_run), "--env", "native/pendulum", "--device", "cuda"]) == 2
    assert "there is no GPU to roll out on" in capsys.readouterr().err


def test_certify_counts_bounds_stores_and_the_report_shows_it(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certify, "WARM", 20)
    monkeypatch.setattr(certify, "FIRST", 80)
    arguments = ["certify", str(finished_run), "--env", "native/pendulum", "--episodes", "250"]
    assert main([*arguments, "--steps", "40"]) == 0
    captured = capsys.readouterr()
    assert (
        "with 95 % confidence, the probability of a violation in an episode's first 40 steps is below" in captured.out
    )
    assert "in native/pendulum, within 40 steps:" in captured.out
    assert "in 250 episodes cut off after 40 steps: with 95 %" in captured.out
    assert "100 episodes measured: the other 150 will take about" in captured.err
    stored = json.loads((finished_run / "certificate-40steps.json").read_text())
    exact = certificate(stored["violations"], 250)
    assert (stored["episodes"], stored["upper"], stored["low"]) == (250, exact.upper, exact.low)
    rolled = shown(capsys, "rollout", str(finished_run), "--env", "native/pendulum", "--envs", "250", "--steps", "40")
    assert rolled["violations"]["violations"] == stored["violations"]  # batches don't change the episodes
    assert rolled["returns"]["mean"] == pytest.approx(stored["returns"]["mean"])
    assert f"mean return {rolled['returns']['mean']:.1f} [{rolled['returns']['low']:.1f}, " in captured.out
    page = tmp_path / "report.html"
    assert main(["report", str(finished_run), "-o", str(page)]) == 0
    assert stored["sentence"] in capsys.readouterr().out
    assert "<h2>Certificates</h2>" in page.read_text()
    assert "native/pendulum, within 40 steps" in page.read_text()
    (finished_run / "certificate-40steps.json").unlink()
    assert main([*arguments[:-1], "30", "--steps", "40", "--gap", "wind"]) == 0
    assert json.loads((finished_run / "certificate-wind-40steps.json").read_text())["gap"] == "wind"
    capsys.readouterr()
    assert main(["report", str(finished_run), "-o", str(page)]) == 0
    assert "certified in native/pendulum with wind, within 40 steps:" in capsys.readouterr().out
    (finished_run / "certificate-wind-40steps.json").unlink()


def test_certificates_of_different_questions_do_not_share_a_file(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for more in ([], ["--policy-seed", "5"], ["--policy-seed", "0", "--seed", "3"], ["--steps", "200"]):
        arguments = ["certify", str(finished_run), "--env", "native/pendulum", "--episodes", "3"]
        names.append(pathlib.Path(shown(capsys, *arguments, *more)["stored"]).name)
    assert names == ["certificate.json", "certificate-seed5.json", "certificate.json", "certificate-200steps.json"]
    for name in set(names):
        (finished_run / name).unlink()
    one = certify.Certified(certificate(0, 9), "bc", "native/pendulum", None, 2, 200.0, 0, 1.0, "cpu", policy_seed=0)
    same = dataclasses.replace(one, certificate=certificate(1, 20), seed=3)
    other = dataclasses.replace(one, environment="native/acrobot")
    for own, named in ((None, "certificate-2.json"), (SYSTEMS["pendulum"].gym_id, "certificate-native-acrobot.json")):
        plan, spec = types.SimpleNamespace(environment=own, seeds=(0,)), types.SimpleNamespace(environment=None)
        run = types.SimpleNamespace(plan=plan, spec=spec)
        monkeypatch.setattr(certify.Run, "open", lambda folder, run=run: run)
        paths = [certify.store(each, tmp_path) for each in (one, same, other)]
        assert [path.name for path in paths] == ["certificate.json", "certificate.json", named]
        for path in set(paths):
            path.unlink()


def test_sample_draws_actions_and_certificates_say_so(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    actor = GaussianActor(3, 1, (4,))
    file = tmp_path / "gaussian.safetensors"
    Policy.of(actor, Normalizer(3), torch.tensor([-2.0]), torch.tensor([2.0])).save(file)
    evaluating = ["evaluate", str(file), "--env", "native/pendulum", "--episodes", "4"]
    still, drawn = shown(capsys, *evaluating), shown(capsys, *evaluating, "--sample")
    assert (still.get("sampled"), drawn["sampled"]) == (None, True)
    assert still["episodes"]["0"]["returns"] != drawn["episodes"]["0"]["returns"]
    assert main([*evaluating, "--sample"]) == 0
    assert "Actions were drawn, as in training (--sample)" in capsys.readouterr().out
    assert main([*evaluating, "--sample", "--vary", "mass=0.5:2", "--variants", "2"]) == 0
    assert "Actions were drawn" in capsys.readouterr().out
    certifying = ["certify", str(file), "--env", "native/pendulum", "--episodes", "3"]
    found = shown(capsys, *certifying, "--sample")
    assert (found["policy"], found["sampled"]) == (f"{file}, actions drawn", True)
    assert shown(capsys, *certifying)["sampled"] is None
    one = certify.Certified(certificate(0, 9), "bc", "native/pendulum", None, 2, 200.0, 0, 1.0, "cpu", sampled=True)
    assert certify.store(one, finished_run).name == "certificate-sampled.json"
    (finished_run / "certificate-sampled.json").unlink()
    for words, said in (
        (["evaluate", str(finished_run)], "this policy is deterministic"),
        (["certify", "--policy", "random", "--env", "native/pendulum"], "--sample is of a RUN's policy"),
        (["certify", "native/pendulum", "--planner", "cem"], "--sample is of a policy that acts alone"),
    ):
        assert main([*words, "--sample", "--episodes", "2"]) == 2
        assert said in capsys.readouterr().err


def test_certify_a_behaviour_and_say_the_same_twice(capsys: Capture) -> None:
    arguments = ["certify", "--policy", "expert", "--env", "native/dubins-obstacles", "--episodes", "60"]
    first, again = (shown(capsys, *arguments) for _ in range(2))
    assert first["violations"] == again["violations"] == 0
    assert first["stored"] is None
    assert first["upper"] == pytest.approx(1 - 0.05 ** (1 / 60))  # no violation: 1 - alpha^(1/n)


def test_certify_stops_once_violations_are_known_to_be_rare_or_frequent(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WARM", "FIRST", "BATCH"):
        monkeypatch.setattr(certify, name, 64)
    arguments = ["certify", "--env", "native/dubins-obstacles", "--episodes", "2000"]
    rare = shown(capsys, *arguments, "--policy", "expert", "--until", "0.05")
    assert rare["sequential"]
    assert (rare["violations"], rare["episodes"] % 64) == (0, 0)
    assert 0.02 < rare["upper"] <= 0.05
    assert rare["upper"] == sequential_certificate(0, rare["episodes"]).upper
    assert (rare["returns"]["low"], rare["returns"]["high"]) == (None, None)  # no one fixed how many beforehand
    assert main([*arguments, "--policy", "random", "--until", "0.05", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "violations are more frequent than 0.05, after 64 of 2,000 episodes" in said
    assert re.search(r"mean return -?[\d.]+ \(no interval: the number of episodes was not fixed beforehand\)", said)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["certify", "RUN", "--until", "7", "--episodes", "9"], "until is 7"),
        (["envs", "info", "native/quadrotr"], "'native/quadrotor-2d' or"),
        (["envs", "list", "zzz"], "contains 'zzz'"),
        (["envs", "check", "Pendulm-v1"], "Pendulum-v1"),
        (["rollout"], "say who acts"),
        (["rollout", "RUN", "--policy", "expert"], "say who acts"),
        (["rollout", "--policy", "expert"], "say where"),
        (["rollout", "--policy", "exprt", "--env", "native/pendulum"], "did you mean 'expert'"),
        (["rollout", "--policy", "expert", "--env", "Pendulum-v1"], "--policy random is the only one"),
        (["rollout", "--policy", "random", "--env", "native/pendulum", "--envs", "0"], "--envs is 0"),
        (["rollout", "--policy", "random", "--env", "native/pendulum", "--steps", "0"], "0 steps"),
        (["rollout", "--policy", "random", "--env", "native/pendulum", "--gap", "wnd"], "did you mean 'wind'"),
        (["rollout", "--policy", "random", "--env", "native/pendulum", "--threads", "0"], "--threads is 0"),
        (["rollout", "RUN", "--env", "native/pendulum", "--device", "gpu"], "device 'gpu' is unknown"),
        (["rollout", "--policy", "random", "--env", "native/pendulum", "--device", "cuda"], "only a trained policy"),
        (["rollout", "RUN", "--env", "native/quadrotor-2d"], "observations don't fit"),
        (["rollout", "nowhere", "--env", "native/pendulum"], "nowhere"),
        (["rollout", "RUN", "--policy-seed", "3"], "has no seed 3"),
        (["certify", "RUN", "--episodes", "0"], "0 episodes"),
        (["certify", "RUN", "--env", "native/dubins-obstacles", "--filter", "reach"], "observations don't fit"),
        (["certify", "RUN", "--filter", "reach", "--device", "cuda"], "behind a filter episodes are stepped on a CPU"),
        (["certify", "RUN", "--confidence", "95", "--episodes", "9"], "confidence is 95"),
        (["certify", "--policy", "random", "--env", "Pendulum-v1", "--episodes", "3"], "gives no cost"),
        (["export", "RUN", "-o", "p.onnx", "--seed", "1"], "--seed is called --policy-seed here"),
        (["bench", "policy", "RUN", "--seed", "1"], "--seed is called --policy-seed here"),
        (["export", "RUN", "-o", "p.hpp", "--filter", "cbf"], "a C++ header holds the reach filter; export to .onnx"),
        (["export", "RUN", "-o", "p.hpp", "--env", "native/pendulum"], "--env is of a filter; add --filter reach"),
        (["export", "RUN", "-o", "p.hpp", "--margin", "1"], "--safe-set and --margin are of a filter"),
    ],
)
def test_bad_commands_end_with_code_2_and_one_sentence(
    arguments: list[str], message: str, finished_run: pathlib.Path, capsys: Capture
) -> None:
    assert main([str(finished_run) if argument == "RUN" else argument for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("surefoot: error: ")
    assert message in line


def test_a_policy_is_exported_with_a_filter_of_a_safe_set(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    safe_set = str(tmp_path / "set.npz")
    assert main(["reach", "native/pendulum", "--points", "21,21", "-o", safe_set, "-q"]) == 0
    options = ["--env", "native/pendulum", "--filter", "reach", "--safe-set", safe_set, "--margin", "0.1"]
    capsys.readouterr()
    for name in ("both.hpp", "both.safetensors"):
        assert main(["export", str(finished_run), "-o", str(tmp_path / name), *options]) == 0
    told, progress = capsys.readouterr()
    assert "both::FilteredPolicy::act(observation, action): 3 numbers -> 1 numbers" in told
    assert "both.filter.npz" in told
    assert "reading the safe set of native/pendulum" in progress
    text = (tmp_path / "both.hpp").read_text()
    assert "constexpr double margin = 0.1;" in text
    both = load_filtered(tmp_path / "both.safetensors")
    assert cpp.header(both.policy, both.safety, both.model, "both") == text
