"""LeRobot reads our dataset, we read LeRobot's, and a policy of ours runs under LeRobot's evaluation loop.

    python3 -m venv peers/lerobot                                             # an environment of its own
    peers/lerobot/bin/pip install "lerobot[pusht]==0.4.4"
    peers/lerobot/bin/pip install --no-deps .                                 # surefoot without its versions
    peers/lerobot/bin/python benchmarks/peers/lerobot_roundtrip.py            # writes results/lerobot_roundtrip.*
    peers/lerobot/bin/python benchmarks/peers/lerobot_roundtrip.py --quick    # smaller; writes nothing

Ends with a traceback where anything differs. `tests/surefoot/test_lerobot.py` runs it where SUREFOOT_LEROBOT_PYTHON
names that python.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gymnasium
import numpy as np
import torch

RESULTS = pathlib.Path(__file__).parents[1] / "results"
ROUNDS = 3
ROWS = 50_000
PUSHT_STEPS = 100
LEAST = 20.0
"""Times LeRobot's speed at which states and actions are to load."""


def import_lerobot() -> Any:
    """The dataset class; torchvision's kernels, which are not used, may be of another build than torch."""
    given = torch.library.register_fake
    torch.library.register_fake = lambda *unused, **options: lambda function: function  # type: ignore[assignment]
    try:
        import torchvision  # noqa: F401
    finally:
        torch.library.register_fake = given
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset


def episodes(rows: int) -> Any:
    """A dataset of ours: episodes of 100 steps, every second one terminated."""
    from surefoot.data.dataset import Dataset

    rng = np.random.default_rng(0)
    states = rng.standard_normal((rows + 1, 17)).astype(np.float32)
    last = np.arange(rows) % 100 == 99
    ended = last & (np.arange(rows) % 200 == 199)
    return Dataset(
        observations=states[:-1],
        actions=rng.uniform(-1, 1, (rows, 6)).astype(np.float32),
        rewards=rng.standard_normal(rows).astype(np.float32),
        next_observations=states[1:].copy(),
        terminations=ended,
        truncations=last & ~ended,
        episode_ids=(np.arange(rows) // 100).astype(np.int64),
        valid=np.ones(rows, bool),
        name="made",
    )


def ours_in_theirs(loading: Any, folder: pathlib.Path) -> dict[str, Any]:
    """Each frame of a dataset that we wrote, as LeRobot gives it."""
    from surefoot.data import save

    data = episodes(300)
    save(data, folder / "ours", layout="lerobot")
    found = loading("local/ours", root=folder / "ours")
    frames = [found[k] for k in range(len(found))]
    states = np.stack([frame["observation.state"].numpy() for frame in frames])
    actions = np.stack([frame["action"].numpy() for frame in frames])
    rewards = np.array([float(frame["next.reward"]) for frame in frames])
    np.testing.assert_array_equal(states, data.observations)
    np.testing.assert_array_equal(actions, data.actions)
    np.testing.assert_allclose(rewards, data.rewards)
    np.testing.assert_allclose(found.meta.stats["action"]["mean"], data.actions.mean(0), atol=1e-6)
    return {"frames": len(frames), "episodes": found.num_episodes, "task": frames[0]["task"]}


def theirs_in_ours(loading: Any, folder: pathlib.Path) -> dict[str, Any]:
    """A dataset that LeRobot wrote, with pictures as PNG and as a video, as we give it."""
    from surefoot.data import load

    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": None},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "observation.images.still": {"dtype": "image", "shape": (32, 48, 3), "names": ["height", "width", "channels"]},
        "observation.images.film": {"dtype": "video", "shape": (64, 96, 3), "names": ["height", "width", "channels"]},
    }
    made = loading.create("local/theirs", fps=10, features=features, root=folder / "theirs", vcodec="h264")
    rng = np.random.default_rng(1)
    states, stills, shades = [], [], []
    for length in (12, 7):
        for step in range(length):
            states.append(rng.standard_normal(3).astype(np.float32))
            stills.append(rng.integers(0, 256, (32, 48, 3), np.uint8))
            shades.append(20 * step)
            made.add_frame(
                {
                    "observation.state": states[-1],
                    "action": states[-1][:2] * 2,
                    "next.reward": np.array([step], np.float32),
                    "observation.images.still": stills[-1],
                    "observation.images.film": np.full((64, 96, 3), shades[-1], np.uint8),
                    "task": "reach",
                }
            )
        made.save_episode()
    made.finalize()
    data = load(folder / "theirs")
    np.testing.assert_array_equal(data.observations, states)
    np.testing.assert_array_equal(data.actions, np.stack(states)[:, :2] * 2)
    assert data.episode_lengths.tolist() == [12, 7]
    mapping = folder / "pictures.yaml"
    mapping.write_text(
        "observations: observation.state\nactions: action\nepisode: episode_index\n"
        "images: {still: observation.images.still, film: observation.images.film}\n"
    )
    pictures = load(folder / "theirs", mapping=mapping).extras
    np.testing.assert_array_equal(pictures["observations/still"], np.stack(stills))
    film = pictures["observations/film"].mean((1, 2, 3))
    np.testing.assert_allclose(film, shades, atol=6)  # a video is not exact
    return {"frames": len(states), "film": list(pictures["observations/film"].shape)}


class Stub(gymnasium.Env[Any, Any]):
    """Observes as LeRobot's environments do; the reward is the negative squared action."""

    metadata = {"render_fps": 10}  # noqa: RUF012
    task_description = "stay"
    task = "stay"
    _max_episode_steps = 30

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Dict(agent_pos=gymnasium.spaces.Box(-9, 9, (3,), np.float64))
        self.action_space = gymnasium.spaces.Box(-2, 2, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.count = self.np_random.uniform(-1, 1, 3), 0
        return {"agent_pos": self.place}, {"is_success": False}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = np.clip(self.place + 0.1 * np.append(action, action[0]), -9, 9)
        self.count += 1
        info = {"is_success": False}
        return {"agent_pos": self.place}, -float(action @ action), False, self.count >= 30, info


class Seen(Stub):
    """The same with a camera: a picture whose shades are the place."""

    def __init__(self) -> None:
        super().__init__()
        pixels = gymnasium.spaces.Box(0, 255, (48, 64, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict(**self.observation_space.spaces, pixels=pixels)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._seen(*super().reset(seed=seed, options=options))  # type: ignore[return-value]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._seen(*super().step(action))  # type: ignore[return-value]

    def _seen(self, observation: Any, *others: Any) -> tuple[Any, ...]:
        ramp = np.linspace(-9, 9, 64)[None, :, None]
        shades = np.clip(128 + 40 * (self.place - ramp), 0, 255).astype(np.uint8)
        return {**observation, "pixels": np.broadcast_to(shades, (48, 64, 3)).copy()}, *others


def made(observations: int, actions: int, low: float, high: float, *, chunk: bool = False) -> Any:
    """An untrained policy of ours with actions in [low, high]; of chunks of four actions, two are played."""
    from surefoot.core.actors.heads import DeterministicActor
    from surefoot.core.actors.memory_actors import ChunkActor
    from surefoot.core.nn.normalizer import Normalizer
    from surefoot.core.policy.policy import Policy

    torch.manual_seed(0)
    actor: Any = DeterministicActor(observations, 4 * actions if chunk else actions, (16,))
    actor = ChunkActor(actor, 4, 2) if chunk else actor
    bounds = torch.full((actions,), low), torch.full((actions,), high)
    return Policy.of(actor, Normalizer(observations), *bounds)


def made_to_see() -> Any:
    """An untrained policy of ours of a vector and a picture."""
    from surefoot.core.actors.heads import DeterministicActor
    from surefoot.core.base.spec import Array
    from surefoot.core.nn.encoders import Encoder
    from surefoot.core.nn.normalizer import Normalizer
    from surefoot.core.policy.policy import Policy

    torch.manual_seed(0)
    encoder = Encoder({"agent_pos": Array((3,)), "pixels": Array((48, 64, 3), "uint8")})
    actor, bound = DeterministicActor(encoder.width, 2, (16,)), torch.full((2,), 2.0)
    return Policy.of(actor, Normalizer(3), -bound, bound, encoder)


def evaluated(policy: Any, env: Any, folder: pathlib.Path) -> list[float]:
    """Returns of four episodes in LeRobot's `eval_policy`, of the policy that it loads from this folder."""
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    from lerobot.processor import PolicyProcessorPipeline
    from lerobot.scripts.lerobot_eval import eval_policy

    from surefoot.interop.lerobot_policy import SurefootPolicy

    SurefootPolicy.of(policy).save_pretrained(folder)
    assert get_policy_class("surefoot") is SurefootPolicy
    loaded = SurefootPolicy.from_pretrained(folder)
    before, after = make_pre_post_processors(loaded.config, pretrained_path=str(folder))
    nothing: Any = PolicyProcessorPipeline(steps=[])
    same: Any = PolicyProcessorPipeline(steps=[], to_transition=lambda one: one, to_output=lambda one: one)
    scores = eval_policy(env, loaded, nothing, same, before, after, n_episodes=4, start_seed=0)
    if policy.encoder is None:
        chunk = loaded.predict_action_chunk({"observation.state": torch.zeros(1, policy.observation_dim)})
        assert chunk.shape[::2] == (1, policy.action_dim)
    return [one["sum_reward"] for one in scores["per_episode"]]


def played(policy: Any, env: Any, observed: Callable[[Any], Any], steps: int) -> list[float]:
    """Returns of the same episodes in a loop of ours."""
    found = []
    for seed in range(4):
        observation, _ = env.reset(seed=seed)
        policy.reset()
        total = 0.0
        for _ in range(steps):
            observation, reward, terminated, *_ = env.step(policy.select_action(observed(observation)))
            total += float(reward)
            if terminated:
                break
        found.append(total)
    return found


def policy_in_their_loop(folder: pathlib.Path) -> dict[str, Any]:
    """Returns of LeRobot's `eval_policy` beside ours: a plain policy, one of chunks, one that sees, one in PushT."""
    from lerobot.envs.configs import PushtEnv
    from lerobot.envs.factory import make_env

    found: dict[str, Any] = {}
    for name in ("plain", "chunk"):
        policy = made(3, 2, -2.0, 2.0, chunk=name == "chunk")
        theirs = evaluated(policy, gymnasium.vector.SyncVectorEnv([Stub, Stub]), folder / name)
        ours = played(policy, Stub(), lambda seen: seen["agent_pos"].astype(np.float32), 30)
        np.testing.assert_allclose(theirs, ours, rtol=1e-4)
        found[name] = theirs
    policy = made_to_see()
    theirs = evaluated(policy, gymnasium.vector.SyncVectorEnv([Seen, Seen]), folder / "camera")
    ours = played(policy, Seen(), lambda seen: {**seen, "agent_pos": seen["agent_pos"].astype(np.float32)}, 30)
    np.testing.assert_allclose(theirs, ours, rtol=1e-4)
    found["camera"] = theirs
    settings = PushtEnv(obs_type="environment_state_agent_pos", episode_length=PUSHT_STEPS)
    policy = made(18, 2, 0.0, 512.0)
    theirs = evaluated(policy, make_env(settings, n_envs=2)["pusht"][0], folder / "pusht")
    own = gymnasium.make("gym_pusht/PushT-v0", obs_type="environment_state_agent_pos")
    joined = ("agent_pos", "environment_state")
    ours = played(
        policy, own, lambda seen: np.concatenate([seen[key] for key in joined]).astype(np.float32), PUSHT_STEPS
    )
    np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=1e-3)
    assert max(theirs) > 0, "the policy never moved the block, so that nothing was compared"
    found["pusht"] = theirs
    return found


def timed(function: Callable[[], Any]) -> float:
    """Seconds."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def loading_speed(loading: Any, folder: pathlib.Path, rows: int) -> dict[str, Any]:
    """Seconds to have all states and actions as arrays: by us, by LeRobot's items, and by its whole columns."""
    from surefoot.data import load, save

    save(episodes(rows), folder / "many", layout="lerobot")

    def items() -> Any:
        found = loading("local/many", root=folder / "many")
        return [(item["observation.state"], item["action"]) for item in (found[k] for k in range(len(found)))]

    def columns() -> Any:
        held = loading("local/many", root=folder / "many").hf_dataset.with_format("numpy")
        return held["observation.state"][:], held["action"][:]

    load(folder / "many")
    ours, whole, theirs = [], [], []
    for _ in range(ROUNDS):
        ours.append(timed(lambda: load(folder / "many")))
        whole.append(timed(columns))
        theirs.append(timed(items))
    middle = statistics.median(ours)
    ratio = statistics.median(theirs) / middle
    assert ratio >= LEAST, f"only {ratio:.1f} times LeRobotDataset's speed"
    return {
        "rows": rows,
        "seconds": {"surefoot": ours, "LeRobotDataset": theirs, "LeRobotDataset, whole columns": whole},
        "times_items": ratio,
        "times_columns": statistics.median(whole) / middle,
    }


def table(found: dict[str, Any]) -> str:
    """The page of results."""
    ours, theirs = found["ours_in_theirs"]["frames"], found["theirs_in_ours"]["frames"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    speed = found["loading"]
    lines = [
        "# To LeRobot and back",
        "",
        f"{versions}. {found['machine']}. `python benchmarks/peers/lerobot_roundtrip.py`, at {found['git']}.",
        "",
        "| what | compared | |",
        "|---|---|---|",
        f"| a dataset of ours in LeRobotDataset | states, actions, rewards, statistics | {ours} frames, equal |",
        "| a dataset that LeRobot wrote, read without LeRobot | states, actions, episodes, PNG | "
        f"{theirs} frames, equal; video within 6 of 255 |",
    ]
    shown = {
        "plain": "a stub",
        "chunk": "a stub, chunks of actions",
        "camera": "a stub, its state and a camera",
        "pusht": "LeRobot's PushT, from its state",
    }
    for name, where in shown.items():
        returns = ", ".join(f"{one:.3f}" for one in found["policy"][name])
        what = f"a policy of ours in LeRobot's `eval_policy`: {where}"
        lines.append(f"| {what} | returns of 4 episodes | {returns}: as in a loop of ours |")
    lines += [
        "",
        f"All states and actions of {speed['rows']:,} frames as arrays, median of {ROUNDS} rounds in turn, one thread:",
        "",
        "| | seconds | times as long |",
        "|---|---|---|",
    ]
    least = statistics.median(speed["seconds"]["surefoot"])
    for name, taken in speed["seconds"].items():
        lines.append(f"| {name} | {statistics.median(taken):.3f} | {statistics.median(taken) / least:.1f} |")
    lines += [
        "",
        f"- {speed['times_items']:.0f} times the speed of LeRobotDataset's items, at least {LEAST:.0f}: met. Items are "
        "what LeRobot's training reads; whole columns are the fastest way that we know to have arrays from it.",
    ]
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Processor and cores."""
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} cores"


def main() -> int:
    """Everything, as one JSON object."""
    from surefoot.core.base.files import write_json

    loading = import_lerobot()
    torch.set_num_threads(1)
    quick = "--quick" in sys.argv
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12"]
    commit = subprocess.run(command, cwd=pathlib.Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        found = {
            "versions": {name: importlib.metadata.version(name) for name in ("lerobot", "torch", "pyarrow")},
            "machine": machine(),
            "git": commit,
            "ours_in_theirs": ours_in_theirs(loading, folder),
            "theirs_in_ours": theirs_in_ours(loading, folder),
            "policy": policy_in_their_loop(folder),
            "loading": loading_speed(loading, folder, 3000 if quick else ROWS),
        }
    if not quick:
        write_json(RESULTS / "lerobot_roundtrip.json", found)
        (RESULTS / "lerobot_roundtrip.md").write_text(table(found), encoding="utf-8")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
