"""Logs of stable-baselines3 and CleanRL become run folders that results and compare read."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from small_runs import TINY

from surefoot.cli import main
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.evaluation import RunData
from surefoot.interop.training_logs import titles
from surefoot.interop.training_logs.found import seeds_in
from surefoot.interop.training_logs.write import stated, write

MONITOR = '#{"t_start": 100.0, "env_id": "Hopper-v5"}\nr,l,t\n'
HOPPER = (-20.272305, 3234.3)
"""D4RL's random and expert returns of hopper (infos.py)."""


def evaluations(folder: pathlib.Path, results: Any, **more: Any) -> pathlib.Path:
    """What `EvalCallback` writes, at steps 1000, 2000, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    results = np.asarray(results, float)
    steps = 1000 * np.arange(1, len(results) + 1)
    lengths = np.full(results.shape, 10)
    np.savez(folder / "evaluations.npz", timesteps=steps, results=results, ep_lengths=lengths, **more)
    return folder


def test_evaluations_of_three_seeds_are_one_run_with_an_interval_over_seeds(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, last in enumerate(([90, 110], [100, 120], [80, 100])):
        evaluations(tmp_path / "ppo" / f"Hopper-v5_{seed}", [[0, 10], last])
    assert main(["import", "runs", str(tmp_path / "ppo"), "-o", str(tmp_path / "out")]) == 0
    (folder,) = (tmp_path / "out").iterdir()
    run = RunData.load(folder)
    assert (run.algorithm, run.environment) == ("ppo (evaluation)", "Hopper-v5")
    assert (run.seeds, run.per_seed_returns, run.steps, run.episodes) == ((0, 1, 2), (100.0, 110.0, 90.0), 2000, 2)
    assert run.returns is not None
    assert run.normalized is not None
    assert run.returns["mean"] == 100
    # Student's t over the means 100, 110, 90: standard deviation 10, t of 2 degrees of freedom 4.3027
    assert run.returns["high"] == pytest.approx(100 + 4.302653 * 10 / 3**0.5, rel=1e-6)
    assert run.normalized["mean"] == pytest.approx(100 * (100 - HOPPER[0]) / (HOPPER[1] - HOPPER[0]))
    assert [(point.step, point.mean) for point in run.learning_curve()] == [(1000, 5.0), (2000, 100.0)]
    capsys.readouterr()
    assert main(["results", str(tmp_path / "out")]) == 0
    assert "ppo (evaluation)" in capsys.readouterr().out


def test_monitors_of_one_seed_are_ordered_by_time_and_judged_by_their_last_episodes(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "sac_seed7"
    folder.mkdir()
    (folder / "0.monitor.csv").write_text(MONITOR + "1.0,10,1.0\n3.0,10,3.0\n")
    (folder / "1.monitor.csv").write_text(
        MONITOR.replace("100.0", "101.0") + "2.0,5,1.0\n4.0,5,3.5\n"
    )  # ends at 102, 104.5
    (log,) = seeds_in([folder], last=3)
    assert (log.environment, log.seed, log.score, log.algorithm) == ("Hopper-v5", 7, "training", None)
    assert [(point.step, point.mean) for point in log.points] == [(10, 1.0), (15, 2.0), (25, 3.0), (30, 4.0)]
    assert (log.final, log.judged) == (3.0, "mean of the last 3 training episodes")
    with pytest.raises(ConfigError, match="give --algorithm"):
        stated([log])
    (out,) = write(stated([log], algorithm="sac"), tmp_path / "out")
    run = RunData.load(out)
    assert (run.algorithm, run.per_seed_returns) == ("sac (training return)", (3.0,))
    assert not run.learning_curve()  # which is of evaluations alone
    assert run.training_curves()["episode_return"][-1] == (30, 4.0)
    assert run.returns is not None
    assert run.returns["low"] is None  # one seed, whose episodes are of different policies


def test_progress_has_evaluations_or_the_running_mean_of_training(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "progress.csv"
    path.write_text("time/total_timesteps,rollout/ep_rew_mean,eval/mean_reward\n64,1.5,\n128,2.5,9.0\n192,3.5,\n")
    (log,) = seeds_in([path])
    assert (log.score, log.final, log.steps) == ("evaluation", 9.0, 128)
    (log,) = seeds_in([path], "training")
    assert (log.score, log.final, log.steps) == ("training", 3.5, 192)


def test_histories_of_cleanrl_give_algorithm_environment_and_seed(tmp_path: pathlib.Path) -> None:
    chart = tmp_path / "wandb_export.csv"
    name = "Hopper-v4__ppo_continuous_action__{}__1680000000 - charts/episodic_return"
    head = ",".join(f'"{name.format(seed)}{end}"' for seed in (1, 2) for end in ("", "__MIN", "__MAX"))
    chart.write_text(f'"global_step",{head}\n100,1,1,1,,,\n150,,,,5,5,5\n200,3,3,3,,,\n')
    one, two = seeds_in([chart])
    assert (one.algorithm, one.environment, one.seed) == ("ppo_continuous_action", "Hopper-v4", 1)
    assert [(point.step, point.mean) for point in one.points] == [(100, 1.0), (200, 3.0)]
    assert (two.seed, two.final, two.score) == (2, 5.0, "training")

    cache = tmp_path / "openrlbenchmark" / "cleanrl" / "abc123"
    cache.mkdir(parents=True)
    (cache / "run_df.csv").write_text(
        ",global_step,charts/episodic_return,_step,note\n0,10,2.0,0,x\n1,20,,1,x\n2,30,4.0,2,x\n"
    )
    config = {"seed": {"value": 3}, "env_id": {"value": "Hopper-v4"}, "exp_name": {"value": "sac"}}
    (cache / "run.json").write_text(json.dumps({"id": "abc123", "_attrs": {"config": json.dumps(config)}}))
    (log,) = seeds_in([tmp_path / "openrlbenchmark"])
    assert (log.algorithm, log.environment, log.seed, log.final) == ("sac", "Hopper-v4", 3, 3.0)


def test_event_files_of_tensorboard_are_read_where_nothing_better_is_there(tmp_path: pathlib.Path) -> None:
    writing = pytest.importorskip("torch.utils.tensorboard", reason="the extra tensorboard is not installed")
    writer = writing.SummaryWriter(str(tmp_path / "Hopper-v4__td3__5__1680000000"))
    for step, value in ((10, 1.0), (20, 2.0)):
        writer.add_scalar("charts/episodic_return", value, step)
    writer.close()
    (log,) = seeds_in([tmp_path])
    assert (log.algorithm, log.environment, log.seed, log.final, log.steps) == ("td3", "Hopper-v4", 5, 1.5, 20)


def test_what_stable_baselines3_itself_writes_is_read(tmp_path: pathlib.Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="the extra sb3 is not installed")
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.monitor import Monitor

    gym = pytest.importorskip("gymnasium")
    folder = tmp_path / "ppo" / "CartPole-v1_4"
    folder.mkdir(parents=True)
    model = sb3.PPO(
        "MlpPolicy", Monitor(gym.make("CartPole-v1"), str(folder / "0.monitor.csv")), n_steps=64, n_epochs=1
    )
    model.set_logger(configure(str(folder), ["csv"]))
    judge = EvalCallback(
        Monitor(gym.make("CartPole-v1")), eval_freq=64, n_eval_episodes=3, log_path=str(folder), verbose=0
    )
    model.learn(128, callback=judge)
    (log,) = seeds_in([tmp_path])
    assert (log.algorithm, log.environment, log.seed, log.steps) == ("ppo", "CartPole-v1", 4, 128)
    assert log.last == tuple(judge.evaluations_results[-1])
    (trained,) = seeds_in([tmp_path], "training")
    assert trained.final == pytest.approx(np.mean(model.env.envs[0].get_episode_rewards()))


@pytest.mark.usefixtures("in_process")
def test_imported_runs_stand_beside_ours_in_compare_and_results(
    tmp_path: pathlib.Path, dataset_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        evaluations(tmp_path / "logs" / f"s{seed}", [[500 + seed, 500 + seed]])
    given = ["--algorithm", "ppo", "--env", "native/pendulum"]
    assert main(["import", "runs", str(tmp_path / "logs"), "-o", str(tmp_path / "theirs"), *given]) == 0
    ours = tmp_path / "ours"
    assert main(["train", "-q", "algo=bc", f"dataset={dataset_path}", "seeds=3", f"out={ours}", *TINY]) == 0
    capsys.readouterr()
    theirs = next((tmp_path / "theirs").iterdir())
    assert main(["compare", str(ours), str(theirs), "--json"]) == 0
    said = capsys.readouterr()
    (pair,) = json.loads(said.out)["pairs"]
    returns = RunData.load(ours).per_seed_returns
    assert pair["difference"]["mean"] == pytest.approx(np.mean(returns) - 501)
    notes = " ".join(said.err.split())
    assert "is judged by: mean of the last evaluation's 2 episodes" in notes
    assert "is judged by: mean of 2 episodes of the last policy" in notes
    assert main(["compare", str(ours), str(theirs), "--until", "decided", "-o", str(tmp_path / "study")]) == 2
    assert "no further seed of it can be trained" in " ".join(capsys.readouterr().err.split())
    assert main(["results", str(tmp_path / "theirs"), str(ours)]) == 0
    assert "ppo (evaluation)" in capsys.readouterr().out
    assert main(["evaluate", str(theirs)]) == 2
    assert "was imported from another library's logs" in " ".join(capsys.readouterr().err.split())
    assert main(["report", str(theirs), str(ours), "-o", str(tmp_path / "report.html")]) == 0


def test_a_seed_that_is_there_twice_and_a_wrong_count_of_seeds_are_refused(tmp_path: pathlib.Path) -> None:
    for name in ("a", "b"):
        evaluations(tmp_path / name, [[1, 2]])
    logs = seeds_in([tmp_path])
    with pytest.raises(ConfigError, match=r"--seeds names 3 seeds, and there are 2 logs"):
        stated(logs, "ppo", "Hopper-v5", [0, 1, 2])
    with pytest.raises(ConfigError, match=r"both seed 4 of ppo in Hopper-v5"):
        write(stated(logs, "ppo", "Hopper-v5", [4, 4]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("0.monitor.csv", "r,l,t\n1,2,3\n", "Monitor's header, which begins with #, is missing"),
        ("0.monitor.csv", "#{}\nr,l,t\n1,2\n", "line 3: has 2 cells, and the heading 3"),
        ("0.monitor.csv", "#{}\nr,l,t\n", "holds no finished episode"),
        ("0.monitor.csv", "#{}\nr,l,t\ninf,2,3\n", "a return, length or time that is not finite"),
        ("progress.csv", "a,b\n1,2\n", "no column 'time/total_timesteps'"),
        ("h.csv", "_step,charts/episodic_return\n1,2\n", "export it with global_step"),
        ("h.csv", "charts/episodic_return\n1\n", "so that its steps are not known"),
        ("h.csv", "a,b\n1,2\n", "holds no log"),
        ("evaluations.npz", "not a zip", "is a damaged NPZ file"),
    ],
)
def test_a_damaged_log_is_named(name: str, content: str, wrong: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=wrong):
        seeds_in([tmp_path])


def test_pickled_objects_in_an_archive_are_never_loaded(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "evaluations.npz", timesteps=np.array([1]), results=np.array([[{}]], object))
    with pytest.raises(DataError, match="python objects, which are never loaded"):
        seeds_in([tmp_path])
    np.savez(tmp_path / "evaluations.npz", timesteps=np.array([1, 2]), results=np.ones((1, 3)))
    with pytest.raises(DataError, match=r"timesteps have shape \(2,\) and results \(1, 3\)"):
        seeds_in([tmp_path])


@pytest.mark.parametrize(
    ("title", "known"),
    [
        ("Hopper-v4__ppo__3__1680000000", {"environment": "Hopper-v4", "algorithm": "ppo", "seed": 3}),
        ("sac-seed12", {"seed": 12}),
        ("s0", {"seed": 0}),
        ("results", {}),
    ],
)
def test_names_say_what_they_say(title: str, known: dict[str, Any]) -> None:
    assert titles.about(title) == known
