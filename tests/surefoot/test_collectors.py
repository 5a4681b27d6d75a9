"""Collectors act for a learner elsewhere: one gives the run without, several train, and a lost one costs time only."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import forking
import pytest
import torch

from surefoot.cli import main
from surefoot.core.base import checkpoint
from surefoot.core.base.errors import ConfigError, SimulatorError, SurefootError
from surefoot.core.engine.agent import Spec
from surefoot.online.base.agents import OffPolicyAgent
from surefoot.online.remote.team import LostError, Team, weights
from surefoot.online.remote.team_experience import check_agent, joined
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.processes import collectors
from surefoot.runs.run import Run

SMALL = ["env=native/pendulum", "seeds=1", "episodes=2", "evaluate_episodes=1", "algo.hidden=[8,8]", "-q"]
PPO = ["algo=ppo", "steps=256", "evaluate_every=128", "envs=2", "algo.horizon=32", "algo.minibatches=4", *SMALL]
LAG = ["algo=ppo_lag", "algo.horizon=160", "steps=1280", "evaluate_every=640", *PPO[3:4], *PPO[5:]]
OFF = ["steps=80", "evaluate_every=40", "envs=2", "algo.initial_steps=20", "batch_size=16", *SMALL]
SAC = ["algo=sac", *OFF]
DQN = ["algo=dqn", "env=CartPole-v1", "algo.epsilon_steps=20", "algo.learning_rate=0.1"]
DQN += [one for one in OFF if one != SMALL[0]]
OFF_POLICY = sorted(name for name, kind in ALGORITHMS.items() if issubclass(kind, OffPolicyAgent))


class Here:
    """A collector in this process, which dies when it is given to: before answers with these numbers."""

    dies: list[int] = []  # noqa: RUF012
    started = 0

    def __init__(self) -> None:
        type(self).started += 1
        self.collector, self.answers = collectors.Collector(), list[bytes]()

    def send(self, message: bytes) -> None:
        answer = self.collector.answer(message)
        if answer is not None:
            self.answers.append(answer)

    def receive(self, patience: float | None) -> bytes:
        from surefoot.online.remote.team import unpacked

        number = unpacked(self.answers[0])[0].get("number")
        if number in self.dies:
            self.dies.remove(number)
            raise LostError("it was killed")
        return self.answers.pop(0)

    def close(self) -> None:
        pass


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> type[Here]:
    def work(run: Run, groups: list[list[int]], tell: Any, lock: int) -> None:
        from surefoot.runs.trainers.choose import seed_trainer

        for seeds in groups:
            run.seed_folder(seeds[0]).mkdir(parents=True, exist_ok=True)
            trainer = seed_trainer(run, seeds, tell)
            trainer.train()
            trainer.finish()

    monkeypatch.setattr("surefoot.runs.start.work", work)
    monkeypatch.setattr(collectors, "ProcessConnection", Here)
    monkeypatch.setattr(Here, "dies", [])
    monkeypatch.setattr(Here, "started", 0)
    return Here


def state(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    """What a run learned: parameters and optimisers, at its end."""
    tensors, _ = checkpoint.load(Run.open(folder).checkpoint_path(0), kind="checkpoint")
    return {name: value for name, value in tensors.items() if name.startswith(("agent/", "adam/", "rewards/"))}


def assert_same(one: pathlib.Path, other: pathlib.Path) -> None:
    first, second = state(one), state(other)
    assert first.keys() == second.keys()
    assert [name for name, value in first.items() if not torch.equal(value, second[name])] == []
    returns = [json.loads((f / "summary.json").read_text())["per_seed_returns"] for f in (one, other)]
    assert returns[0] == returns[1]


def facts(folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((folder / "seeds" / "0" / "result.json").read_text())["collectors"]


@pytest.mark.parametrize(
    ("settings", "more"), [(PPO, []), (LAG, []), (SAC, ["collect_steps=1"])], ids=["ppo", "ppo_lag", "sac"]
)
def test_one_collector_gives_the_local_run_to_the_bit_also_where_it_is_lost(
    settings: list[str], more: list[str], tmp_path: pathlib.Path, here: type[Here], capsys: Any
) -> None:
    local, remote, lost = (tmp_path / name for name in ("local", "remote", "lost"))
    assert main(["train", *settings, f"out={local}"]) == 0
    assert main(["train", *settings, *more, "collectors=processes", f"out={remote}"]) == 0
    assert_same(local, remote)
    here.dies += [1, 2]
    assert main(["train", *settings[:-1], *more, "collectors=processes", f"out={lost}"]) == 0
    assert_same(local, lost)
    assert facts(lost)["restarts"] == 2
    assert here.dies == []
    assert "collector 0 was lost (it was killed): restarted where it stood" in capsys.readouterr().out


def test_one_collector_chooses_by_the_values_that_are_learned(tmp_path: pathlib.Path, here: type[Here]) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    assert main(["train", *DQN, f"out={local}"]) == 0
    assert main(["train", *DQN, "collect_steps=1", "collectors=processes", f"out={remote}"]) == 0
    assert_same(local, remote)


@pytest.mark.parametrize("name", OFF_POLICY)
def test_collectors_are_given_all_that_their_actions_depend_on(name: str) -> None:
    kind: Any = ALGORITHMS[name]
    spec = Spec.of_choices(3, 2) if kind.requires.discrete else Spec(3, 2, (-1.0, -1.0), (1.0, 1.0))
    agent = kind(spec).fresh(0)
    try:
        check_agent(agent)
    except ConfigError:
        return
    own = {name: value.detach() for name, value in agent.state_dict().items()}
    learner: Any = types.SimpleNamespace(agent=agent, agents_parameters=lambda position: own)
    given = weights(learner)
    for key, value in own.items():
        if f"agent/{key}" not in given and value.is_floating_point():
            value.fill_(torch.nan)
    assert bool(agent.explore(torch.zeros(1, 3), torch.zeros(1, agent.explore_dim)).isfinite().all())
    assert all(bool(parameter.isfinite().all()) for parameter in agent.actor.parameters())


def moments(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    """The statistics of observations that a run ended with."""
    tensors, _ = checkpoint.load(Run.open(folder).checkpoint_path(0), kind="checkpoint")
    return {name: value for name, value in tensors.items() if name.startswith("blocks/moments/")}


def test_a_collector_without_a_violation_or_an_inserted_row_says_so_beside_one_with() -> None:
    quiet = {"rewards": torch.tensor([[1.0]])}
    loud = {"rewards": torch.tensor([[2.0]]), "costs": torch.tensor([[3.0]]), "valid": torch.tensor([[False]])}
    for parts, order in (((quiet, loud), [0, 1]), ((loud, quiet), [1, 0])):
        found = joined(parts, lambda columns: torch.cat(columns, 1))
        assert found["costs"][0, order].tolist() == [0.0, 3.0]
        assert found["valid"][0, order].tolist() == [True, False]
    with pytest.raises(KeyError):  # what every step has
        joined(
            ({"rewards": quiet["rewards"], "actions": quiet["rewards"]}, loud), lambda columns: torch.cat(columns, 1)
        )


def test_a_run_from_another_keeps_its_normaliser_with_collectors_too(tmp_path: pathlib.Path, here: type[Here]) -> None:
    first, local, remote = (tmp_path / name for name in ("first", "local", "remote"))
    assert main(["train", *PPO, f"out={first}"]) == 0
    assert main(["train", *PPO, f"init={first}", f"out={local}"]) == 0
    assert main(["train", *PPO, f"init={first}", "collectors=processes", f"out={remote}"]) == 0
    assert_same(local, remote)
    mean = state(first)["agent/normalizer.mean"]
    assert bool(mean.any())
    assert torch.equal(state(remote)["agent/normalizer.mean"], mean)


@pytest.mark.parametrize("staleness", [1, 3])
def test_each_row_enters_the_statistics_once_whatever_the_staleness(
    staleness: int, tmp_path: pathlib.Path, here: type[Here]
) -> None:
    team = [*PPO, "collectors=processes", "workers=2"]
    assert main(["train", *team, f"out={tmp_path / 'whole'}"]) == 0
    assert main(["train", *team, f"staleness={staleness}", f"out={tmp_path / 'stale'}"]) == 0
    whole, stale = (moments(tmp_path / name) for name in ("whole", "stale"))
    assert torch.equal(whole["blocks/moments/count"], stale["blocks/moments/count"])
    assert float(whole["blocks/moments/count"]) > 0


@pytest.mark.parametrize("settings", [PPO, SAC], ids=["ppo", "sac"])
def test_two_collectors_train_while_the_learner_learns_and_a_killed_run_goes_on(
    settings: list[str], tmp_path: pathlib.Path, here: type[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    team = ["collectors=processes", "workers=2"]
    whole, killed, stale = (tmp_path / name for name in ("whole", "killed", "stale"))
    assert main(["train", *settings, *team, f"out={whole}"]) == 0

    saves = Run.checkpoint_path

    class KilledError(Exception):
        pass

    def once_saved(self: Run, seed: int) -> pathlib.Path:
        path = saves(self, seed)
        if path.is_file() and self.folder == killed.resolve():
            raise KilledError
        return path

    monkeypatch.setattr(Run, "checkpoint_path", once_saved)
    with pytest.raises(KilledError):  # at its second checkpoint
        main(["train", *settings, *team, f"out={killed}"])
    monkeypatch.setattr(Run, "checkpoint_path", saves)
    assert main(["train", "-q", "--resume", str(killed)]) == 0
    assert_same(whole, killed)
    assert main(["train", *settings, *team, "staleness=1", "collect_steps=4", f"out={stale}"]) == 0
    ages = facts(stale)["staleness"]
    assert set(ages) == {"0", "1"}
    assert ages["0"] == 1
    assert facts(whole)["staleness"].keys() == {"0"}
    assert facts(whole)["bytes_received"] > 0


def test_environments_and_blocks_follow_from_the_number_of_collectors(tmp_path: pathlib.Path, here: type[Here]) -> None:
    settings = [one for one in PPO if not one.startswith(("steps", "evaluate_every", "envs", "algo.horizon"))]
    command = ["train", *settings, "steps=2112", "collectors=processes", "workers=3", f"out={tmp_path / 'run'}"]
    assert main(command) == 0
    run = Run.open(tmp_path / "run")
    assert run.plan.config["num_envs"] == 3
    assert facts(run.folder)["staleness"] == {"0": 1}  # one block of 2,112 steps, the fewest that are 2,048 or more


def test_a_collector_that_is_lost_again_and_again_ends_the_run_with_a_sentence() -> None:
    class Dead(Here):
        def send(self, message: bytes) -> None:
            raise LostError("no such process")

    with pytest.raises(SurefootError, match=r"collector 0 was lost 6 times in a row without an answer \(no such proc"):
        Team(lambda worker: Dead(), lambda worker: {}, 1).collect(0, lambda: ({}, {}))


LARGE = 1 << 22
"""Bytes that no pipe holds."""


def threads_end(before: set[threading.Thread]) -> bool:
    """Whether the threads that have started since end within a minute."""
    end = time.monotonic() + 60
    while set(threading.enumerate()) - before:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def connection() -> Iterator[collectors.ProcessConnection]:
    """A collector in a process that neither reads nor writes until SIGCONT."""
    made = collectors.ProcessConnection()
    os.kill(made.process.pid, signal.SIGSTOP)
    yield made
    made.close()


def test_patience_holds_also_where_a_collector_that_hangs_leaves_its_pipe_full(
    connection: collectors.ProcessConnection,
) -> None:
    team = Team(lambda worker: connection, lambda worker: {}, 1, staleness=1, patience=0.5)
    said: list[str] = []

    def learn() -> None:
        with pytest.raises(SimulatorError) as refused:
            team.collect(0, lambda: ({}, {"agent/weights": torch.zeros(LARGE // 4)}))
        said.append(str(refused.value))

    learner = threading.Thread(target=learn, daemon=True)
    learner.start()
    learner.join(60)
    assert said == ["collector 0 gave no answer for 0.5 seconds (patience=): its environment may hang"]


def test_a_closed_connection_leaves_no_thread_that_writes_or_reads() -> None:
    before = set(threading.enumerate())
    for message in (b"", bytes(LARGE)):
        connection = collectors.ProcessConnection()
        os.kill(connection.process.pid, signal.SIGSTOP)
        connection.send(message)
        connection.close()
        assert threads_end(before)


def test_a_collector_that_takes_no_orders_is_lost(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "deaf"
    program.write_text("#!/bin/sh\nexec sleep 1000 0<&-\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    connection = collectors.ProcessConnection()
    connection.send(bytes(LARGE))
    with pytest.raises(LostError, match="takes no orders"):
        connection.receive(60)
    connection.close()


INTERRUPTED = """
import os, signal, threading
from surefoot.runs.processes.collectors import ProcessConnection
from surefoot.runs.processes.stopping import listen_to_signals
from surefoot.online.remote.team import packed, unpacked
listen_to_signals(threading.Event())
connection = ProcessConnection()
for _ in range(2):
    os.killpg(0, signal.SIGINT)
    connection.send(packed({"do": "nothing"}, {}))
    print(unpacked(connection.receive(None))[0]["error"], flush=True)
connection.close()
"""


def test_a_terminals_interrupt_is_the_learners_alone_from_a_collectors_first_moment_on() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        start_new_session=True,  # a group of its own, as a terminal's Ctrl-C reaches
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["unexpected", "unexpected"]), done.stderr
    assert "KeyboardInterrupt" not in done.stderr


HANGING = """
import os, sys, time
from surefoot.runs.processes import collectors
def answer(self, message):
    print("acts", file=sys.stderr, flush=True)
    time.sleep(1000)
collectors.Collector.answer = answer
collectors.main()
"""


def test_a_collector_whose_environment_hangs_ends_with_its_learner() -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", HANGING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stdin is not None
        assert process.stderr is not None
        collectors.write_framed(process.stdin, b"an order")
        assert process.stderr.readline() == b"acts\n"
        process.stdin.close()
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["workers=2"], "who acts is not given"),
        (["collectors=processes", "workers=3"], "can't be shared equally"),
        (["collectors=threads"], "must be one of processes, ray or null"),
        (["collectors=processes", "dataset=native/pendulum-mixed", "algo=iql"], "does not learn from blocks"),
        (["collectors=processes", "algo=a2c", "staleness=1"], "newest policy only"),
    ],
)
def test_what_collectors_can_not_do_is_said(
    more: list[str], said: str, tmp_path: pathlib.Path, here: type[Here], capsys: Any
) -> None:
    settings = [one for one in SAC if one.partition("=")[0] not in {m.partition("=")[0] for m in more}]
    if any("a2c" in m or "iql" in m for m in more):
        settings = [one for one in settings if not one.startswith(("algo.", "envs="))]
    assert main(["train", *settings, *more, f"out={tmp_path / 'run'}"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["processes", "ray"])
def test_collectors_in_processes_and_on_ray_give_the_local_run(kind: str, tmp_path: pathlib.Path) -> None:
    if kind == "ray":
        pytest.importorskip("ray.actor")
    for name, more in (("local", []), (kind, [f"collectors={kind}"])):
        done = forking.run(["-m", "surefoot", "train", *PPO, *more, f"out={tmp_path / name}"], cwd=tmp_path)
        if "Ray did not begin" in done.stderr:
            pytest.skip(f"Ray does not begin on this machine now: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "local", tmp_path / kind)
