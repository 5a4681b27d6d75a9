"""Published results: what papers report, the settings that they report it for, and how a run of ours compares.

The declarations are `conf/reproduce/published.toml`, one table a result. `conf/reproduce/measured.json`, which
`python benchmarks/reproduce.py --table` writes from committed results, holds how fast each trains on one core and what
was run here.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.schema import Flag, Kind, Many, Maybe, Number, Plain, Record, Table, Text, check, parse

METRICS = ("return", "normalised", "success", "cost", "normalised cost")
"""What is compared: the mean return, 100 times the normalised return, the share of solved episodes in per cent, the
mean cost of an episode, and that as a share of the limit."""
Place = Literal["inside", "below", "above", "no interval"]
"""Where a published number lies: in our 95 % interval, below it, or above it."""

_STAGE: dict[str, Kind] = {"algorithm": Text(100), "run": Table(Plain(finite=True))}
_OPTIONS: dict[str, Kind] = {"options": Table(Plain(finite=True))}
PUBLISHED = Record(
    {"metric": Text(100, METRICS), "value": Number()},
    {
        "spread": Number(0),
        "low": Number(),
        "high": Number(),
        "of": Text(200),
        "seeds": Number(1, whole=True),
        "limit": Number(0),
    },
)
"""A number, with its spread or interval, what that is of (`of`), over how many seeds, and the limit of a normalised
cost."""
DECLARATION = Record(
    {
        **_STAGE,
        "family": Text(100),
        "task": Text(200),
        "paper": Text(300),
        "table": Text(300),
        "protocol": Text(500),
        "published": Many(PUBLISHED, 1, 4),
    },
    {
        **_OPTIONS,
        "before": Record(_STAGE, _OPTIONS),
        "sizes": Many(Number(1, whole=True), 2, 2),
        "data": Text(500),
        "needs": Text(500),
        "differs": Text(700),
        "alike": Text(100),
    },
)
"""What a table of published.toml holds. `sizes` are those of observation and action, for rates without the data;
`data` is how the file is had; `needs` is what a plain install lacks; `differs` is what of the paper's settings is not
repeated; `alike` is the result of equal sizes whose rate on a core is this one's too."""
HERE = Record(
    {
        "updates": Number(1, whole=True),
        "seeds": Many(Number(0, whole=True), 1),
        "episodes": Number(1, whole=True),
        "shorter": Flag(),
        "outcomes": Many(
            Record(
                {
                    "metric": Text(100, METRICS),
                    "published": Number(),
                    "mean": Number(),
                    "low": Maybe(Number()),
                    "high": Maybe(Number()),
                    "place": Text(20),
                }
            ),
            1,
        ),
    },
    others=True,
)
"""A run as `reproduction.json` and the lines of benchmarks/results/reproduce.jsonl hold it."""
MEASURED = Table(Record({}, {"core": Table(Number(0)), "gpu": Number(0), "gpu_row": Text(200), "here": HERE}))
"""What measured.json holds: name -> steps a second of one core by stage, of a GPU as predicted and by which row of
the predictions, and what was run here."""


@dataclasses.dataclass(frozen=True)
class Published:
    """A number of a paper's table."""

    metric: str
    value: float
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    of: str | None = None  # what the spread or interval is of
    seeds: int | None = None
    limit: float | None = None  # of a normalised cost

    def __str__(self) -> str:
        """As in `65.1 +- 1.6 (standard deviation of 3 seeds)`."""
        words = {"success": " %", "cost": " (cost)", "normalised cost": " (cost / limit)"}
        text = f"{self.value:.4g}{words.get(self.metric, '')}"
        if self.spread is not None:
            text += f" +- {self.spread:.3g}"
        if self.low is not None and self.high is not None:
            text += f" [{self.low:.4g}, {self.high:.4g}]"
        reported = [part for part in (self.of, None if self.seeds is None else _seeds(self.seeds)) if part]
        return text + (f" ({', '.join(reported)})" if reported else "")


@dataclasses.dataclass(frozen=True)
class Stage:
    """One run: an algorithm, its options, and fields of `surefoot train`."""

    algorithm: str
    options: Mapping[str, Any]
    run: Mapping[str, Any]

    @property
    def steps(self) -> int:
        """Updates, or steps in the environment, for each seed."""
        return int(self.run["steps"])

    def values(self) -> dict[str, Any]:
        """What is reported after `surefoot train`: name -> value."""
        return {"algo": self.algorithm, **{f"algo.{name}": value for name, value in self.options.items()}, **self.run}


@dataclasses.dataclass(frozen=True)
class Result:
    """A published result and all that is needed to repeat it."""

    name: str
    family: str
    task: str
    paper: str
    table: str
    protocol: str
    published: tuple[Published, ...]
    stages: Mapping[str, Stage]
    """`run`, and before it `before` where it starts from another run."""
    sizes: tuple[int, int] | None = None
    data: str | None = None
    needs: str | None = None
    differs: str | None = None
    alike: str | None = None

    @property
    def algorithm(self) -> str:
        """Of the run that is scored."""
        return self.stages["run"].algorithm

    def shortened(self, updates: int | None, seeds: Any | None) -> Result:
        """The same with at most `updates` steps of each stage, and other seeds; None: as published."""
        stages = {}
        for stage, one in self.stages.items():
            changed = {} if updates is None else {"steps": min(one.steps, updates)}
            changed |= {} if seeds is None else {"seeds": seeds}
            stages[stage] = dataclasses.replace(one, run={**one.run, **changed})
        return dataclasses.replace(self, stages=stages)

    def place(self, given: Mapping[str, Any]) -> Result:
        """The same with fields of `surefoot train` that say where it runs: dataset, environment, device."""
        stages = {}
        for stage, one in self.stages.items():
            kept = {key: value for key, value in given.items() if key not in ("dataset", "env") or key in one.run}
            stages[stage] = dataclasses.replace(one, run={**one.run, **kept})
        return dataclasses.replace(self, stages=stages)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A published number beside ours."""

    metric: str
    published: float
    mean: float
    low: float | None
    high: float | None
    place: Place

    def __str__(self) -> str:
        """One sentence."""
        ours = f"{self.mean:.4g}" + ("" if self.low is None else f" [{self.low:.4g}, {self.high:.4g}]")
        where = {
            "inside": "lies in our 95 % interval",
            "below": "lies below our 95 % interval",
            "above": "lies above our 95 % interval",
            "no interval": "can't be placed: ours has no interval",
        }[self.place]
        return f"{self.metric}: ours {ours}, published {self.published:.4g}, which {where}"


def results() -> dict[str, Result]:
    """All published results by name, in the order of the declarations.

    Raises:
        ConfigError: the declarations can't be read, or one is not what it must be.
    """
    return read(_file("published.toml").read_text(encoding="utf-8"), "published.toml")


def read(text: str, where: object) -> dict[str, Result]:
    """The results that a TOML text declares.

    Args:
        text: its content.
        where: what errors call it.

    Raises:
        ConfigError: it is no TOML, or a declaration lacks a key or has a value of the wrong kind.
    """
    try:
        declared = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:  # two tables of one name among them
        raise ConfigError(f"{where}: {error}") from error
    check(declared, Table(DECLARATION), where, ConfigError)
    found = {name: _result(name, value) for name, value in declared.items()}
    for name, one in found.items():
        if "steps" not in one.stages["run"].run or "seeds" not in one.stages["run"].run:
            raise ConfigError(f"{where}: {name}.run: give steps and seeds")
        if one.alike is not None and one.alike not in found:
            raise ConfigError(f"{where}: {name}.alike: {nearest(one.alike, list(found))}")
    return found


def result(name: str) -> Result:
    """The result of this name.

    Raises:
        ConfigError: there is none; the sentence has the nearest names.
    """
    known = results()
    if name not in known:
        raise ConfigError(f"no published result is called {name!r}: {nearest(name, list(known))}")
    return known[name]


@functools.cache
def measured() -> Mapping[str, Mapping[str, Any]]:
    """Name -> how fast it trains and what was run here, as `MEASURED`; nothing of a result that was not measured."""
    file = _file("measured.json")
    value = parse(file.read_bytes(), file, ConfigError)
    check(value, MEASURED, file, ConfigError)
    found: Mapping[str, Mapping[str, Any]] = value
    return found


def seconds(one: Result, where: Literal["core", "gpu"]) -> float | None:
    """How long one seed trains, by measured rates of one core or the predicted rate of a GPU; None: not known.

    Evaluations are not counted.
    """
    facts = measured().get(one.name, {})
    if where == "gpu":
        rate = facts.get("gpu")
        return None if not rate else one.stages["run"].steps / rate
    rates = facts.get("core", {})
    if any(not rates.get(stage) for stage in one.stages):
        return None
    return sum(stage.steps / rates[name] for name, stage in one.stages.items())


def outcomes(one: Result, summary: Mapping[str, Any]) -> list[Outcome]:
    """The published numbers beside those of a finished run.

    Args:
        one: the result.
        summary: what the run's summary.json holds.

    Raises:
        ConfigError: the run has no such score, as the return where it has no simulator.
    """
    return [_outcome(published, summary, one.name) for published in one.published]


def place(value: float, low: float | None, high: float | None) -> Place:
    """Where a number lies beside an interval.

    >>> place(3.0, 1.0, 3.0), place(0.0, 1.0, 3.0), place(4.0, 1.0, 3.0), place(4.0, None, None)
    ('inside', 'below', 'above', 'no interval')
    """
    if low is None or high is None:
        return "no interval"
    return "below" if value < low else "above" if value > high else "inside"


def duration(value: float | None) -> str:
    """Seconds as a person says them.

    >>> duration(None), duration(40), duration(1500), duration(36000), duration(1e6)
    ('-', '40 s', '25 min', '10 h', '12 days')
    """
    if value is None:
        return "-"
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 72)):
        if value < most * length:
            return f"{max(1, round(value / length))} {unit}"
    return f"{round(value / 86400)} days"


def _outcome(published: Published, summary: Mapping[str, Any], name: str) -> Outcome:
    keys = {"return": "returns", "normalised": "normalized", "success": "success"}
    found = summary.get(keys.get(published.metric, "cost"))
    if found is None:
        raise ConfigError(
            f"{name}: the run has no {published.metric} to compare; it needs the environment that the paper scores in"
        )
    scale = 100.0 if published.metric == "success" else 1.0
    if published.metric == "normalised cost":
        scale = 1 / float(published.limit or 1.0)
    mean, low, high = (None if found[key] is None else scale * found[key] for key in ("mean", "low", "high"))
    if mean is None:
        raise ConfigError(f"{name}: the run's {published.metric} is not a number")
    return Outcome(published.metric, published.value, mean, low, high, place(published.value, low, high))


def _result(name: str, value: Mapping[str, Any]) -> Result:
    def stage(part: Mapping[str, Any]) -> Stage:
        return Stage(part["algorithm"], part.get("options", {}), part["run"])

    stages = {"before": stage(value["before"])} if "before" in value else {}
    own = {key: one for key, one in value.items() if key not in ("algorithm", "options", "run", "before")}
    own["published"] = tuple(Published(**one) for one in value["published"])
    if "sizes" in own:
        own["sizes"] = tuple(own["sizes"])
    return Result(name, stages={**stages, "run": stage(value)}, **own)


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _file(name: str) -> Any:
    return importlib.resources.files("surefoot") / "conf" / "reproduce" / name


def families(known: Sequence[Result]) -> list[str]:
    """The families of results, each once."""
    return list(dict.fromkeys(one.family for one in known))
