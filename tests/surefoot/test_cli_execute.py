"""`surefoot execute`: policies whose inference takes time, in simulated control time."""

from __future__ import annotations

import importlib.util
import itertools
import json
import pathlib
import re
import sys
import time
from typing import Any

import forking
import numpy as np
import pytest
import torch

from surefoot.cli import main
from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.execution.executor import Execution
from surefoot.core.execution.guidance import GuidedPlanner
from surefoot.core.execution.inference import PolicyPlanner, Request
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.nn.velocity import PlainVelocity
from surefoot.core.policy.policy import Policy
from surefoot.play.execute import Latency, execute, percentiles, settings_for, usual_rate
from surefoot.safety.variants import ranges_of

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "robot_chunks.py"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A policy of chunks of 12 actions for the pendulum."""
    torch.manual_seed(0)
    head = ChunkActor(DeterministicActor(3, 12, (16,)), 12, 1)
    path = tmp_path_factory.mktemp("policy") / "policy.safetensors"
    Policy.of(head, Normalizer(3), torch.tensor([-2.0]), torch.tensor([2.0])).save(path)
    return path


def executed(capsys: Capture, run: pathlib.Path, *arguments: str, episodes: int = 2) -> dict[str, Any]:
    given = ["execute", str(run), "--env", "Pendulum-v1", "--episodes", str(episodes), "--json", *arguments]
    assert main(given) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_without_a_latency_episodes_are_those_of_the_policy(chunks: pathlib.Path, mode: str, capsys: Capture) -> None:
    found = executed(capsys, chunks, "--latency", "0", "--mode", mode)
    assert found["returns"]["mean"] == pytest.approx(found["immediate_returns"]["mean"], rel=1e-4)
    assert found["counts"]["held"] == found["counts"]["late"] == found["gap"] == found["delay"] == 0
    assert found["counts"]["ticks"] == found["counts"]["played"] == 400


def test_the_same_seed_gives_the_same_episodes_and_another_one_others(chunks: pathlib.Path, capsys: Capture) -> None:
    law = ("--latency", "0.05", "--jitter", "0.03", "--spike", "0.7", "--spike-share", "0.1")
    found = executed(capsys, chunks, *law)
    again = executed(capsys, chunks, *law)
    found.pop("measured"), again.pop("measured")  # as fast as the machine is
    assert found == again
    other = executed(capsys, chunks, *law, "--seed", "3")
    assert other["counts"] != found["counts"]
    counts = found["counts"]
    assert found["mode"] == "asynchronous"
    assert found["deadline"] == pytest.approx(0.08)
    assert found["delay"] == 4
    assert 0 < counts["late"] < counts["received"] / 3
    assert found["late_share"] == counts["late"] / counts["received"]
    assert counts["ticks"] == 400 == counts["played"] + counts["held"]
    assert counts["received"] * 12 == sum(counts[name] for name in ("played", "stale", "replaced", "dropped"))
    assert found["latency"]["max"] == 700
    assert 20 <= found["latency"]["p50"] <= 80
    assert found["returns"]["mean"] != found["immediate_returns"]["mean"]
    assert found["difference"]["mean"] == pytest.approx(found["returns"]["mean"] - found["immediate_returns"]["mean"])


def test_a_rate_bound_holds_whatever_the_latency(chunks: pathlib.Path, capsys: Capture) -> None:
    free = executed(capsys, chunks, "--latency", "0.06", "--mode", "synchronous")
    found = executed(
        capsys, chunks, "--latency", "0.06", "--max-rate", "5", "--late", "decelerate", "--safe-action", "0"
    )
    assert free["counts"]["largest_jump"] > found["counts"]["largest_jump"] > 0
    assert found["counts"]["largest_jump"] <= 5 / 50 * (1 + 1e-6)
    assert found["counts"]["limited"] > 0


def test_a_measured_latency_is_that_of_this_machine(chunks: pathlib.Path, capsys: Capture) -> None:
    found = executed(capsys, chunks, "--latency", "measured", "--rate", "1000", "--mode", "synchronous")
    assert found["latency"] == found["measured"]
    assert found["deadline"] > 0


def test_a_measured_deadline_is_that_of_guided_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, planned = GuidedPlanner.plan, []

    def slow(self: GuidedPlanner, request: Request) -> Any:
        planned.append(len(request.coming))
        time.sleep(0.02 * (len(request.coming) > 0))
        return plan(self, request)

    monkeypatch.setattr(GuidedPlanner, "plan", slow)
    head = ChunkActor(FlowActor(PlainVelocity(3, 12, (8,)), 12, 2), 12, 1)
    policy = Policy.of(head, Normalizer(3), torch.tensor([-2.0]), torch.tensor([2.0]))
    assert settings_for(policy, Latency(None), 50.0, None, 5.0).deadline > 0.02
    assert set(planned) == {12}
    with pytest.raises(ConfigError, match="only chunks that a flow draws"):
        settings_for(policy_of_one(), Latency(None), 50.0, None, 5.0)


@pytest.mark.parametrize(("guidance", "latency", "before"), [(5.0, None, 5), (None, None, 5), (5.0, 0.02, 0)])
def test_a_machine_s_first_inferences_are_in_no_episode(
    guidance: float | None, latency: float | None, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take longer than others, whatever the deadline; where the latency is given it makes no difference."""
    kind: Any = PolicyPlanner if guidance is None else GuidedPlanner
    plan, planned = kind.plan, []

    def counted(self: PolicyPlanner, request: Request) -> Any:
        planned.append(request)
        return plan(self, request)

    monkeypatch.setattr(kind, "plan", counted)
    head = ChunkActor(FlowActor(PlainVelocity(3, 12, (8,)), 12, 2), 12, 1)
    policy = Policy.of(head, Normalizer(3), torch.tensor([-2.0]), torch.tensor([2.0]))
    found = execute(policy, "native/pendulum", Execution(20.0, deadline=0.2), Latency(latency), 1, guidance=guidance)
    assert len(planned) == before + len(found.measured)
    assert [request.tick for request in planned[: before + 1]] == [0] * (before + 1)


def policy_of_one() -> Policy:
    return Policy.of(DeterministicActor(3, 1, (8,)), Normalizer(3), torch.tensor([-2.0]), torch.tensor([2.0]))


def test_people_read_what_happened_and_a_warning_where_chunks_are_too_short(
    chunks: pathlib.Path, capsys: Capture
) -> None:
    arguments = ["execute", str(chunks), "--env", "Pendulum-v1", "--episodes", "2", "-q"]
    assert main([*arguments, "--latency", "0.08", "--mode", "blend"]) == 0
    shown = capsys.readouterr()
    for line in (
        "execution        blend, 50 ticks/s, 4 of 12 actions, deadline 80 ms (4 ticks)",
        "late chunks",
        "return",
    ):
        assert line in shown.out
    assert shown.err == ""
    assert main([*arguments, "--latency", "0.2"]) == 0
    shown = capsys.readouterr()
    assert "*** chunks of 12 actions end 8 ticks before the next one's deadline" in shown.err
    assert main([*arguments, "--latency", "0.4"]) == 0
    shown = capsys.readouterr()
    assert "synchronous" in shown.out
    assert "*** the robot waits 20 ticks for each chunk" in shown.err


def test_a_policy_of_single_actions_waits_for_each(finished_run: pathlib.Path, capsys: Capture) -> None:
    found = executed(capsys, finished_run, "--latency", "0.04", episodes=1)
    assert found["mode"] == "synchronous"
    assert found["chunk"] == found["execute"] == 1
    assert found["counts"]["held"] == pytest.approx(400 / 3, abs=70)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--latency", "soon"], "--latency is 'soon'"),
        (["--latency", "0.1,0.2"], "--latency is '0.1,0.2'; it is one number of seconds, or measured"),
        (["--latency", "-1"], "latency is -1.0"),
        (["--latency", "nan"], "latency is nan"),
        (["--jitter", "0.2"], "jitter is 0.2 s around a latency of 0.08 s"),
        (["--latency", "measured", "--jitter", "0.1"], "jitter is of a latency that is given"),
        (["--spike-share", "2"], "share of spikes is 2.0"),
        (["--rate", "0"], "rate is 0"),
        (["--mode", "blended"], "did you mean 'blend'"),
        (["--mode", "asynchronous", "--latency", "0.24"], "the deadline is 12 ticks"),
        (["--late", "decelerate"], "no safe_action is given"),
        (["--safe-action", "3"], r"safe_action is [3.0]"),
        (["--max-rate", "1,2"], "max_rate is (1.0, 2.0)"),
        (["--max-rate", "fast"], "--max-rate is 'fast'"),
        (["--episodes", "0"], "episodes is 0"),
        (["--seed", "-1"], "--seed is -1"),
        (["--guidance", "5"], "only chunks that a flow draws"),
        (["--env", "MountainCarContinuous-v0"], "don't fit"),
    ],
)
def test_bad_commands_end_with_code_2_and_one_sentence(
    chunks: pathlib.Path, arguments: list[str], message: str, capsys: Capture
) -> None:
    assert main(["execute", str(chunks), "--env", "Pendulum-v1", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_what_is_not_there_or_no_policy_is_said_before_what_is_missing_beside_it(
    chunks: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    data = tmp_path / "arm.hdf5"
    data.write_bytes(b"\x89HDF\r\n\x1a\n")
    for arguments, message in (
        (["execute", str(tmp_path / "nosuch")], "nosuch.safetensors: there is no such file"),
        (["execute", str(data)], "arm.hdf5 is no run folder"),
        (["evaluate", str(data)], "arm.hdf5 is no run folder"),
        (["evaluate", str(chunks)], "is one policy; say where it acts with --env ID"),
        (["execute", str(chunks)], "is one policy; say where it acts with --env ID"),
        (["execute", str(chunks), "--policy-seed", "0"], "is one policy, and --policy-seed chooses"),
    ):
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert message in line
        assert ("--policy-seed" in line) == ("--policy-seed" in arguments)


def test_a_native_system_ticks_at_its_own_rate() -> None:
    assert usual_rate("native/pendulum") == pytest.approx(20)
    assert usual_rate("native/quadrotor-2d") == pytest.approx(60)
    assert usual_rate("Pendulum-v1") == 50


@pytest.mark.parametrize("name", ["native/pendulum-camera", "native/pendulum_pixels", "surefoot/PendulumPixels-v0"])
def test_a_system_seen_by_a_camera_ticks_at_its_rate_and_has_its_constants(name: str) -> None:
    assert usual_rate(name) == usual_rate("native/pendulum")
    assert ranges_of(["gravity=8:12"], name) == {"gravity": (8.0, 12.0)}


def test_latencies_keep_to_their_law() -> None:
    draw = Latency(0.08, 0.02, 0.7, 0.1, seed=1).stream()
    found = torch.tensor([draw(0.001) for _ in range(4000)])
    spikes = found == torch.tensor(0.7)
    assert float(spikes.float().mean()) == pytest.approx(0.1, abs=0.02)
    usual = found[~spikes]
    assert 0.06 <= usual.min() < 0.061
    assert 0.099 < usual.max() <= 0.1
    assert Latency(None).stream()(0.003) == 0.003
    assert percentiles([0.001, 0.003])["p50"] == 2
    with pytest.raises(ConfigError, match="spike is inf"):
        Latency(0.1, spike=float("inf"))


def test_the_robots_loop_runs_at_its_rate_while_a_thread_plans(chunks: pathlib.Path) -> None:
    done = forking.run([str(EXAMPLE), str(chunks), "--ticks", "250", "--rate", "100", "--deadline", "0.05"])
    assert done.returncode == 0, done.stderr
    ticks, held = (int(re.search(text, done.stdout)[1]) for text in (r"(\d+) ticks", r"(\d+) held"))  # type: ignore[index]
    assert ticks == 250
    assert held < 250
    assert int(re.search(r"(\d+) chunks", done.stdout)[1]) > 5  # type: ignore[index]
    jump = float(re.search(r"largest jump was ([\d.]+) Nm", done.stdout)[1])  # type: ignore[index]
    assert 0 < jump <= 0.6 * 1.01


def test_the_robots_loop_sends_no_two_actions_at_once_after_a_stall(
    chunks: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("robot_chunks", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    clock, sent, begun, reads = [0.0], [], [], itertools.count()

    class Clock:
        """Simulated seconds; looking at it takes 10 microseconds."""

        @staticmethod
        def perf_counter() -> float:
            clock[0] += 1e-5
            return clock[0]

        @staticmethod
        def sleep(seconds: float) -> None:
            clock[0] += seconds

    class Stalling(example.Robot):  # type: ignore[misc, name-defined]
        def read(self) -> np.ndarray:
            clock[0] += {60: 0.6, 80: 0.03}.get(next(reads), 0.0)
            return super().read()

        def send(self, action: np.ndarray) -> None:
            sent.append((clock[0], float(action[0])))
            super().send(action)

    class Watched(example.Executor):  # type: ignore[misc, name-defined]
        def reset(self, seed: int | None = 0, last: Any = None) -> None:
            begun.append((len(sent), None if last is None else float(last[0])))
            super().reset(seed, last)

    for name, value in (("time", Clock), ("Robot", Stalling), ("Executor", Watched)):
        monkeypatch.setattr(example, name, value)
    monkeypatch.setattr(sys, "argv", ["robot_chunks.py", str(chunks), "--rate", "50", "--ticks", "150"])
    example.main()
    times, actions = np.array(sent).T
    gaps = np.diff(times)
    assert len(sent) == 150
    assert gaps.min() > 0.0195
    assert gaps[59] == pytest.approx(0.62, abs=0.001)
    assert gaps[79] == pytest.approx(0.05, abs=0.001)
    assert gaps[80] == pytest.approx(0.02, abs=0.001)
    assert (np.abs(np.diff(actions)) / gaps).max() <= 60 * 1.03
    assert [one for one in begun if one[1] is not None] == [
        (61, pytest.approx(actions[60]))
    ]  # the short one is bridged
