"""What is known of published datasets: where they are, which environment, which reference scores.

The facts stand in catalogue.json and in the naming rules below. D4RL recorded its MuJoCo sets with mujoco-py
and the v2 environments; gymnasium's v5 named here is the nearest that runs today, so a score in it is not
strictly comparable with D4RL's tables. Minari's sets of the same name are other data.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from typing import Any

import numpy as np

from surefoot.data import dsrl

FACTS: dict[str, Any] = json.loads(pathlib.Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8"))
_NATIVE_SCORES = json.loads(pathlib.Path(__file__).with_name("native_scores.json").read_text(encoding="utf-8"))
NATIVE: dict[str, dict[str, Any]] = _NATIVE_SCORES | {scores["name"]: scores for scores in _NATIVE_SCORES.values()}
"""Gymnasium id and `native/<name>` of a native system -> mean returns of random and expert behaviour.

Written by benchmarks/native_scores.py.
"""
NATIVE_MEASURES: dict[str, dict[str, Any]] = json.loads(
    pathlib.Path(__file__).with_name("native_measures.json").read_text(encoding="utf-8")
)
"""Name of an embedded dataset -> its measures among its task's, by the same script; `saco_of`: SACo's reference."""
D4RL_URL = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
MUJOCO = ("halfcheetah", "hopper", "walker2d", "ant")
ADROIT = ("pen", "hammer", "door", "relocate")
MAZE_NAMES = {"umaze": "u-maze", "medium": "big-maze", "large": "hardest-maze"}
KITCHEN_FILES = {
    "complete": "mini_kitchen_microwave_kettle_light_slider",
    "partial": "kitchen_microwave_kettle_light_slider",
    "mixed": "kitchen_microwave_kettle_bottomburner_light",
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One published dataset."""

    id: str  # d4rl/hopper-medium-v2
    family: str  # key of its reference scores
    file: str  # relative to the D4RL root
    d4rl_env_id: str  # the id under which D4RL registered environment and data together
    env_id: str | None  # nearest environment of gymnasium or gymnasium-robotics; None: there is none
    reference: tuple[float, float]  # returns that count as 0 and as 100
    max_episode_steps: int | None
    minari: str | None = None  # Minari's set of the same task: other data
    same_spaces: bool = True  # env_id has the data's observations and actions
    note: str = ""

    @property
    def url(self) -> str:
        """Where the file is; the environment variable SUREFOOT_D4RL_URL replaces the root."""
        return f"{os.environ.get('SUREFOOT_D4RL_URL', D4RL_URL).rstrip('/')}/{self.file}"


def d4rl_files() -> dict[str, tuple[str, str]]:
    """D4RL id -> (family, file relative to the root), as in D4RL's registrations."""
    files: dict[str, tuple[str, str]] = {}
    qualities = ("random", "medium", "expert", "medium-replay", "full-replay", "medium-expert")
    for env in MUJOCO:
        for version in ("v1", "v2"):
            for quality in qualities:
                name = f"{env}_{quality.replace('-', '_')}-{version}.hdf5"
                files[f"{env}-{quality}-{version}"] = (env, f"gym_mujoco_{version}/{name}")
        for quality in ("random", "medium", "expert", "medium-replay", "medium-expert"):
            stem = "mixed" if quality == "medium-replay" else quality.replace("-", "_")
            short = "walker" if (env, stem) == ("walker2d", "mixed") else env
            files[f"{env}-{quality}-v0"] = (env, f"gym_mujoco/{short}_{stem}.hdf5")
    files["ant-random-expert-v0"] = ("ant", "gym_mujoco/ant_random_expert.hdf5")
    for task in ADROIT:
        old = {
            "human": f"{task}-v0_demos_clipped",
            "cloned": f"{task}-demos-v0-bc-combined",
            "expert": f"{task}-v0_expert_clipped",
        }
        for kind, stem in old.items():
            files[f"{task}-{kind}-v0"] = (task, f"hand_dapg/{stem}.hdf5")
            files[f"{task}-{kind}-v1"] = (task, f"hand_dapg_v1/{task}-{kind}-v1.hdf5")
    for kind, stem in KITCHEN_FILES.items():
        files[f"kitchen-{kind}-v0"] = ("kitchen", f"kitchen/{stem}-v0.hdf5")
    return files | _maze_files() | _other_files()


def _maze_files() -> dict[str, tuple[str, str]]:
    files: dict[str, tuple[str, str]] = {}
    for family in FACTS["d4rl"]["families"]:
        if family.startswith("maze2d-"):
            stem, version = family.rsplit("-", 1)
            stem = stem if stem.endswith("-dense") else f"{stem}-sparse"
            files[family] = (family, f"maze2d/{stem}{'' if version == 'v0' else '-' + version}.hdf5")
    for version, folder, suffix in (("v0", "ant_maze_new", ""), ("v2", "ant_maze_v2", "_fixed")):
        for kind in (
            "umaze",
            "umaze-diverse",
            "medium-play",
            "medium-diverse",
            "large-play",
            "large-diverse",
        ):
            maze = kind.split("-")[0]
            starts, goals = kind != "umaze", kind.endswith("diverse")
            stem = f"Ant_maze_{MAZE_NAMES[maze]}_noisy_multistart_{starts}_multigoal_{goals}_sparse{suffix}"
            files[f"antmaze-{kind}-{version}"] = (f"antmaze-{maze}", f"{folder}/{stem}.hdf5")
    return files


def _other_files() -> dict[str, tuple[str, str]]:
    files = {
        "minigrid-fourrooms-v0": ("minigrid-fourrooms", "minigrid/minigrid4rooms.hdf5"),
        "minigrid-fourrooms-random-v0": ("minigrid-fourrooms", "minigrid/minigrid4rooms_random.hdf5"),
        "carla-lane-v0": ("carla-lane", "carla/carla_lane_follow_flat-v0.hdf5"),
        "carla-town-v0": ("carla-town", "carla/carla_town_subsamp_flat-v0.hdf5"),
        "carla-town-full-v0": ("carla-town", "carla/carla_town_flat-v0.hdf5"),
    }
    for road in ("ring", "merge"):
        files[f"flow-{road}-random-v0"] = (f"flow-{road}", f"flow/flow-{road}-v0-random.hdf5")
        files[f"flow-{road}-controller-v0"] = (f"flow-{road}", f"flow/flow-{road}-v0-idm.hdf5")
    for env in MUJOCO:
        for quality in ("random", "medium", "expert", "medium-expert", "medium-replay"):
            file = f"bullet/bullet-{env}_{quality.replace('-', '_')}.hdf5"
            files[f"bullet-{env}-{quality}-v0"] = (f"bullet-{env}", file)
    for maze in ("open", "umaze", "medium", "large"):
        files[f"bullet-maze2d-{maze}-v0"] = (
            f"bullet-maze2d-{maze}",
            f"bullet/bullet-maze2d-{maze}-sparse.hdf5",
        )
    return files


def minari_equivalent(d4rl_id: str) -> str | None:
    """Minari's id for the same task, or None. Never the same transitions."""
    task, _, rest = d4rl_id.rpartition("-")[0].partition("-")
    if task in ADROIT:
        return f"D4RL/{task}/{rest}-v2"
    if task == "kitchen":
        return f"D4RL/kitchen/{rest}-v2"
    if task == "antmaze":
        return f"D4RL/antmaze/{rest}-v1"
    if task == "maze2d" and not rest.startswith("eval"):
        return f"D4RL/pointmaze/{rest}-v2"
    if task in MUJOCO and rest in ("medium", "expert"):
        return f"mujoco/{task}/{rest}-v0"
    return None


def _note(name: str, family: str) -> str:
    notes = []
    if name.startswith("antmaze") and name.endswith("v0"):
        notes.append("its time-outs are unreliable: prefer the v2 set")
    if family == "ant":
        notes.append("111 observations, as Ant-v4 gives with use_contact_forces=True; Ant-v5 gives 105")
    if family.startswith(("antmaze", "maze2d", "kitchen")):
        notes.append("vectors without goals; gymnasium-robotics' task of that name gives dictionaries with goals")
    return "; ".join(notes)


def _build() -> dict[str, Entry]:
    catalogue = {}
    for name, (family, file) in d4rl_files().items():
        facts = FACTS["d4rl"]["families"][family]
        catalogue[f"d4rl/{name}"] = Entry(
            id=f"d4rl/{name}",
            family=family,
            file=file,
            d4rl_env_id=name,
            env_id=facts["gymnasium"],
            reference=(facts["reference"][0], facts["reference"][1]),
            max_episode_steps=facts["steps"],
            minari=minari_equivalent(name),
            same_spaces=family in ("halfcheetah", "hopper", "walker2d", *ADROIT),
            note=_note(name, family),
        )
    return catalogue


CATALOGUE: dict[str, Entry] = _build()

_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*-v\d+")
_RENAMED = {"Pendulum-v0": "Pendulum-v1"} | {f"{task}-v0": f"AdroitHand{task.capitalize()}-v1" for task in ADROIT}
_RETIRED = {
    f"{name}-v{version}": f"{name}-v5" for name in ("Hopper", "HalfCheetah", "Walker2d", "Ant") for version in (1, 2, 3)
}


def gymnasium_id(text: str) -> str | None:
    """The environment id that runs today, from what a file says of its environment.

    >>> gymnasium_id("Pendulum-v0 (Pendulum-v1 in gymnasium)"), gymnasium_id("neorl2 DMSD")
    ('Pendulum-v1', 'neorl2:DMSD')
    """
    text = text.strip()
    if text.startswith("neorl2 "):
        return f"neorl2:{text.removeprefix('neorl2 ')}"
    if f"d4rl/{text}" in CATALOGUE:
        return CATALOGUE[f"d4rl/{text}"].env_id
    if re.fullmatch(r"[\w./:-]+", text) and not _ID.fullmatch(text):
        return text  # a namespaced, `module:Id` or unversioned id of the user's own
    match = _ID.search(text)
    if match is None:
        return None
    return (_RENAMED | _RETIRED).get(match[0], match[0])


def family_of(name: str) -> str | None:
    """The family whose reference scores apply to a dataset id, a D4RL id or an environment id."""
    entry = CATALOGUE.get(name) or CATALOGUE.get(f"d4rl/{name}")
    if entry is not None:
        return entry.family
    if name.removeprefix("neorl2:") in FACTS["neorl2"]["families"]:
        return name.removeprefix("neorl2:")
    stem = re.sub(r"-v\d+$", "", name)
    stem = re.sub(r"^AdroitHand(\w+?)(Sparse)?$", lambda match: match[1].lower() if not match[2] else name, stem)
    if stem.lower() in (*MUJOCO, *ADROIT) and re.search(r"-v\d+$", name):
        return stem.lower()
    return None


def reference_scores(name: str) -> tuple[float, float] | None:
    """Returns that count as 0 and 100 for a dataset id or environment id, or None where none are published.

    Mazes and kitchens have them by D4RL id only: gymnasium-robotics changed those tasks. Those of our native systems
    are the mean returns of random and expert behaviour, those of DSRL's tasks the extremes of its datasets.
    """
    if name in NATIVE:
        return float(NATIVE[name]["random"]), float(NATIVE[name]["expert"])
    family = family_of(name)
    if family is None:
        return dsrl.reference_of(name)
    facts = FACTS["d4rl"]["families"].get(family) or FACTS["neorl2"]["families"][family]
    low, high = facts["reference"]
    return float(low), float(high)


def task_facts(name: str) -> dict[str, Any]:
    """What is known of NeoRL-2's task of a dataset id or environment id; empty of others.

    Keys `observed`, `hidden`, `delay` in words, `steps`, and `published`: method -> score in NeoRL-2's own table, with
    `data` for the data themselves.
    """
    family = family_of(name)
    return dict(FACTS["neorl2"]["families"].get(family) or {}) if family is not None else {}


def neorl2_rows() -> list[dict[str, Any]]:
    """One row a task of NeoRL-2 for `surefoot datasets list`."""
    rows = []
    for name, facts in FACTS["neorl2"]["families"].items():
        scores = {method: score for method, score in facts.get("published", {}).items() if method != "data"}
        best = max(scores, key=lambda method: scores[method], default=None)
        note = f"observed: {facts['observed']}; hidden: {facts['hidden']}; delay: {facts['delay']}"
        if best is not None:
            data = facts["published"]["data"]
            note += f"; published: the data {data:.1f}, best {best} {scores[best]:.1f}"
        low, high = facts["reference"]
        rows.append(
            {
                "id": f"neorl2 {name} (files of polixir/NeoRL2)",
                "environment": f"neorl2:{name}",
                "reference_low": low,
                "reference_high": high,
                "minari": None,
                "note": note,
            }
        )
    return rows


def normalized_score(returns: float | np.ndarray[Any, Any], reference: tuple[float, float]) -> Any:
    """100 (return - low) / (high - low), D4RL's score."""
    low, high = reference
    return 100.0 * (np.asarray(returns, dtype=np.float64) - low) / (high - low)


def has_unit_actions(env_id: str) -> bool:
    """Whether the environment's action bounds are known to be [-1, 1]."""
    stem = re.sub(r"-v\d+$", "", env_id.removeprefix("neorl2:")).split("_")[0]
    return stem in FACTS["unit_actions"]
