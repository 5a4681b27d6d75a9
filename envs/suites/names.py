"""What the names of benchmarks' environments and datasets say, read without their packages.

ogbench/scene-play                                     the dataset of one kind of behaviour, without rewards
ogbench/scene-play-singletask-task2-v0                 one task: the environment, and the rewards of the dataset
ogbench/scene-singletask-task2-v0                      the same environment
ogbench/scene-play-singletask-task2-sparse-post-v0     the same with other rewards, judged after the action
ocbench/block-lite-v0                                  block, lite, single, task 1
ocbench/chamber-cpu-lite-easy-task3-v0                 OCBench's own name behind the prefix
pointmaze/stitch-v0                                    MBRCSL's point maze
pointmaze/stitch-detour30                              its data, 30 % of whose episodes take the detour
"""

from __future__ import annotations

import dataclasses
import re
from typing import ClassVar

from surefoot.core.base.errors import ConfigError, nearest

OGBENCH, OCBENCH, POINTMAZE = "ogbench/", "ocbench/", "pointmaze/"
SUITES = (OGBENCH, OCBENCH, POINTMAZE)
"""Beginnings of names that are a benchmark's."""


@dataclasses.dataclass(frozen=True)
class Base:
    """An environment of OGBench whose observation is a state vector."""

    observations: int
    actions: int
    steps: int  # time limit of a task
    parts: int  # sub-goals: the lowest reward is minus this
    default: int  # task that is meant where none is named
    collected: tuple[str, ...]  # kinds of behaviour that can be recorded here

    @property
    def maze(self) -> bool:
        """Whether the task is to reach a place."""
        return not self.collected or "navigate" in self.collected


_PLAY = ("play", "noisy")
BASES: dict[str, Base] = {
    "cube-single": Base(28, 5, 200, 1, 2, _PLAY),
    "cube-double": Base(37, 5, 500, 2, 2, _PLAY),
    "cube-triple": Base(46, 5, 1000, 3, 2, _PLAY),
    "cube-quadruple": Base(55, 5, 1000, 4, 2, _PLAY),
    "scene": Base(40, 5, 750, 5, 2, _PLAY),
    "puzzle-3x3": Base(55, 5, 500, 9, 4, _PLAY),
    "puzzle-4x4": Base(83, 5, 500, 16, 4, _PLAY),
    "puzzle-4x5": Base(99, 5, 1000, 20, 2, _PLAY),
    "puzzle-4x6": Base(115, 5, 1000, 24, 2, _PLAY),
    "pointmaze-medium": Base(2, 2, 1000, 1, 1, ("navigate",)),
    "pointmaze-large": Base(2, 2, 1000, 1, 1, ("navigate",)),
    "pointmaze-giant": Base(2, 2, 1000, 1, 1, ("navigate",)),
    "pointmaze-teleport": Base(2, 2, 1000, 1, 1, ("navigate",)),
    "antmaze-medium": Base(29, 8, 1000, 1, 1, ()),
    "antmaze-large": Base(29, 8, 1000, 1, 1, ()),
    "antmaze-giant": Base(29, 8, 1000, 1, 1, ()),
    "antmaze-teleport": Base(29, 8, 1000, 1, 1, ()),
    "humanoidmaze-medium": Base(69, 21, 2000, 1, 1, ()),
    "humanoidmaze-large": Base(69, 21, 2000, 1, 1, ()),
    "humanoidmaze-giant": Base(69, 21, 4000, 1, 1, ()),
    "antsoccer-arena": Base(42, 8, 1000, 1, 4, ()),
    "antsoccer-medium": Base(42, 8, 1000, 1, 4, ()),
}
"""OGBench's environments with vectors (Park, Frans, Eysenbach and Levine, "OGBench", 2024)."""
BEHAVIOURS = ("play", "noisy", "navigate", "stitch", "explore")
TASKS = 5


@dataclasses.dataclass(frozen=True)
class OGBenchName:
    """A name that begins with `ogbench/`, taken apart."""

    base: str  # scene, puzzle-3x3, pointmaze-medium
    behaviour: str | None = None  # play, noisy, navigate, stitch or explore: what the data are of
    task: int | None = None  # 1 to 5; None: goal-conditioned
    sparse: bool = False  # -1 on every step but solved ones, instead of minus the number of unmet sub-goals
    post: bool = False  # success is judged after the action, as OGBench below 1.2 did

    @property
    def facts(self) -> Base:
        """What is known of its environment."""
        return BASES[self.base]

    @property
    def gym_id(self) -> str:
        """Under which the ogbench package registers it."""
        return f"{self.base}{'' if self.task is None else f'-singletask-task{self.task}'}-v0"

    @property
    def dataset(self) -> str | None:
        """Name of its data, whatever the task."""
        return None if self.behaviour is None else f"{OGBENCH}{self.base}-{self.behaviour}"

    @property
    def text(self) -> str:
        """The name in full."""
        parts = [self.base, *([self.behaviour] if self.behaviour else [])]
        parts += [] if self.task is None else ["singletask", f"task{self.task}"]
        parts += [word for word, given in (("sparse", self.sparse), ("post", self.post)) if given]
        return OGBENCH + "-".join([*parts, "v0"])

    def rules(self) -> dict[str, str]:
        """How it is scored, in words, for records of runs and data."""
        return {
            "task": "none" if self.task is None else f"task {self.task}",
            "reward": "sparse (-1 until solved, then 0)" if self.sparse else "dense (minus the sub-goals not met)",
            "success": f"judged {'after' if self.post else 'before'} the action",
        }


FAMILIES: dict[str, dict[str, int]] = {
    "block": {"single": 1, "double": 2, "triple": 2, "quadruple": 3},
    "chamber": {"easy": 3, "medium": 2, "hard": 2},
    "switch": {"3x3": 2, "4x4": 2, "5x5": 2},
    "hanoi": {"single": 2, "double": 2, "triple": 2},
    "bowling": {"": 1},
}
"""OCBench's families -> type -> how many tasks; the first type is meant where none is named."""


@dataclasses.dataclass(frozen=True)
class OCBenchName:
    """A name that begins with `ocbench/`, taken apart. Its environments run on a CPU, one at a time."""

    family: str  # block, chamber, switch, hanoi, bowling
    kind: str  # single, easy, 3x3; empty for bowling
    lite: bool = False  # ten actions a second instead of fifty
    task: int = 1

    @property
    def gym_id(self) -> str:
        """Under which the ocbench package registers it."""
        return "-".join([self.family, "cpu", *self._rest(), f"task{self.task}", "v0"])

    @property
    def dataset(self) -> str:
        """Name of its demonstrations."""
        return OCBENCH + "-".join([self.family, *self._rest(), f"task{self.task}"])

    @property
    def text(self) -> str:
        """The name in full."""
        return f"{self.dataset}-v0"

    def _rest(self) -> list[str]:
        return [*(["lite"] if self.lite else []), *([self.kind] if self.kind else [])]


SHARES = (10, 30, 50, 70, 90)
"""Percentages of detours that the data of the point maze may have; 50 where the name says none."""


@dataclasses.dataclass(frozen=True)
class PointMazeName:
    """A name that begins with `pointmaze/`, taken apart."""

    detours: int = 50  # % of the episodes that take the detour
    gym_id: ClassVar[str] = "PointMaze_UMazeDense-v3"
    """Under which gymnasium-robotics registers what the maze is made of."""

    @property
    def dataset(self) -> str:
        """Name of its data."""
        return f"{POINTMAZE}stitch{'' if self.detours == 50 else f'-detour{self.detours}'}"

    @property
    def text(self) -> str:
        """The environment's name, which is the same whatever the data."""
        return f"{POINTMAZE}stitch-v0"


def tasks_of(name: str) -> list[str]:
    """The environments of OGBench's five tasks, each with its goal, for a name without a task.

    Raises:
        ConfigError: another name, or one of a task.

    >>> tasks_of("ogbench/pointmaze-medium-navigate-v0")[1]
    'ogbench/pointmaze-medium-navigate-singletask-task2-v0'
    """
    asked = parse(name) if is_benchmark(name) else None
    if not isinstance(asked, OGBenchName) or asked.task is not None:
        raise ConfigError(
            f"{name} has no tasks of its own: those of OGBench's environments without a task have five, as "
            f"{OGBENCH}pointmaze-medium-v0"
        )
    return [dataclasses.replace(asked, task=task).text for task in range(1, TASKS + 1)]


def is_benchmark(name: str) -> bool:
    """Whether a name is that of a benchmark's environment or data."""
    return name.startswith(SUITES)


def parse(name: str) -> OGBenchName | OCBenchName | PointMazeName:
    """A benchmark's name taken apart.

    Raises:
        ConfigError: it is none; the message names what is near.

    >>> parse("ogbench/scene-play-singletask-task2-v0").gym_id, parse("ocbench/block-lite-v0").gym_id
    ('scene-singletask-task2-v0', 'block-cpu-lite-single-task1-v0')
    """
    if name.startswith(OGBENCH):
        return _ogbench(name)
    if name.startswith(OCBENCH):
        return _ocbench(name)
    if name.startswith(POINTMAZE):
        return _pointmaze(name)
    raise ConfigError(f"{name!r} is no benchmark's name: those begin with {' or '.join(SUITES)}")


def _pointmaze(name: str) -> PointMazeName:
    found = re.fullmatch(r"stitch(-detour(\d+))?(-v0)?", name.removeprefix(POINTMAZE))
    detours = 50 if found is None or found[2] is None else int(found[2])
    if found is None or detours not in SHARES:
        raise ConfigError(
            f"{name!r} is not understood: the environment is {POINTMAZE}stitch-v0, its data {POINTMAZE}stitch or "
            f"{POINTMAZE}stitch-detourN with N one of {', '.join(map(str, SHARES))}"
        )
    return PointMazeName(detours)


def _ogbench(name: str) -> OGBenchName:
    stem = re.sub(r"-v0$", "", name.removeprefix(OGBENCH))
    base = max((known for known in BASES if stem == known or stem.startswith(f"{known}-")), key=len, default=None)
    if base is None:
        raise ConfigError(f"OGBench has no environment {name!r}: {nearest(stem, list(BASES))}")
    words = [word for word in stem[len(base) :].split("-") if word]
    behaviour = words.pop(0) if words and words[0] in BEHAVIOURS else None
    task: int | None = None
    if words and words[0] == "singletask":
        words.pop(0)
        task = BASES[base].default
        if words and re.fullmatch(r"task\d+", words[0]):
            task = int(words.pop(0)[4:])
            if not 1 <= task <= TASKS:
                raise ConfigError(f"{name!r}: OGBench's environments have the tasks 1 to {TASKS}")
    given = set(words)
    if given - {"sparse", "post"} or len(words) != len(given) or (given and task is None):
        odd = next((word for word in words if word not in ("sparse", "post")), words[0] if words else "")
        raise ConfigError(
            f"{name!r}: {odd!r} is not understood there; a name is ogbench/{base}[-BEHAVIOUR][-singletask[-taskN]"
            f"[-sparse][-post]]-v0, with the behaviours {', '.join(BEHAVIOURS)}"
        )
    return OGBenchName(base, behaviour, task, "sparse" in given, "post" in given)


def _ocbench(name: str) -> OCBenchName:
    words = re.sub(r"-v0$", "", name.removeprefix(OCBENCH)).split("-")
    family = words.pop(0)
    if family not in FAMILIES:
        raise ConfigError(f"OCBench has no environment {name!r}: {nearest(family, list(FAMILIES))}")
    if words and words[0] == "cpu":
        words.pop(0)
    lite = bool(words) and words[0] == "lite"
    words = words[1:] if lite else words
    kinds = FAMILIES[family]
    kind = words.pop(0) if words and words[0] in kinds else next(iter(kinds))
    task = int(words.pop(0)[4:]) if words and re.fullmatch(r"task\d+", words[0]) else 1
    if words or not 1 <= task <= kinds[kind] or (lite and family == "bowling"):
        wrong = f"{words[0]!r} is not understood there" if words else f"it has the tasks 1 to {kinds[kind]}"
        if lite and family == "bowling":
            wrong = "bowling has no lite form"
        listed = ", ".join(filter(None, kinds)) or "none"
        raise ConfigError(
            f"{name!r}: {wrong}; a name is ocbench/{family}[-lite][-TYPE][-taskN]-v0, with the types {listed}"
        )
    return OCBenchName(family, kind, lite, task)
