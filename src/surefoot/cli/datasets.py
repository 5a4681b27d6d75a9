"""`surefoot datasets list | info | map | verify | convert | draft | generate | relabel | corrupt`."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

from surefoot.cli import output
from surefoot.core.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.data import Dataset


def add_parser(commands: Any) -> None:
    """Register the command and its own commands."""
    parser = commands.add_parser(
        "datasets", help="list, inspect, map, check, convert, generate, relabel and corrupt datasets, and read your own"
    )
    own = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    made = _add(own, "list", list_all, "all known datasets with environment and reference scores")
    made.add_argument("pattern", nargs="?", default="", help="only those whose name contains this")

    made = _add(own, "info", info, "what a dataset holds")
    made.add_argument("source", help="path or id")
    made.add_argument("--reference", metavar="FILE", help="dataset of the same task against which coverage is counted")
    _add_loading(made)

    made = _add(own, "map", draw_map, "draw datasets by the quality of their episodes and by what they cover")
    made.add_argument("sources", metavar="FILE", nargs="+", help="paths or ids; those of one environment are compared")
    made.add_argument("-o", "--output", default="map.png", help="the picture (default map.png)")
    made.add_argument("--reference", metavar="FILE", help="of all of them (default: of each task the widest)")
    _add_loading(made)

    made = _add(own, "verify", verify, "check files and compare them with their SHA-256; exit code 2 if one is bad")
    made.add_argument("paths", metavar="PATH", nargs="+")
    made.add_argument("--sha256", help="what it must be (one path only; default: PATH.sha256 where it exists)")

    made = _add(own, "convert", convert, "store a dataset in another format")
    made.add_argument("source", help="path or id")
    made.add_argument("destination", help="a new .hdf5, .npz, .parquet or .csv file, a folder, or minari/<id>")
    made.add_argument(
        "--layout", help="of another project: ogbench, dppo (.npz), robomimic (.hdf5) or lerobot (a folder)"
    )
    made.add_argument("--fps", type=float, help="steps a second that it was recorded at, for LeRobot's layout")
    _add_loading(made)

    made = _add(own, "draft", draft, "begin a mapping: what the columns of a log of your own mean")
    made.add_argument("source", help="a CSV, Parquet, NPZ, HDF5 or MCAP file, a ROS 2 bag or a LeRobot dataset")
    made.add_argument("-o", "--output", help="a new .yaml file (default: it is printed)")

    made = _add(own, "generate", generate, "record a dataset by scripted behaviours")
    made.add_argument(
        "name",
        nargs="?",
        help="native/<system>, native/<system>-<behaviour>, ogbench/<environment>-<behaviour>, ocbench/<environment>, "
        "pointmaze/stitch (default: the main job's)",
    )
    made.add_argument("-o", "--output", help="a new file (default: the cache, where dataset=NAME finds it)")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--transitions", type=int, help="rounded up to whole episodes (default: as embedded)")
    made.add_argument("--behaviour", help="of the system (default: the one in the name, else mixed)")
    made.add_argument("--gap", help="preset of altered dynamics, as `surefoot envs info` lists them")
    made.add_argument("--episodes", type=int, help="of a benchmark's dataset (default: 1000, of ocbench 500)")
    made.add_argument("--workers", type=int, help="processes that record a benchmark's dataset (default: one a core)")

    made = _add(own, "relabel", relabel, "give data recorded in OGBench the rewards of one of its tasks")
    made.add_argument("source", help="path or id, with the simulator's states in it")
    made.add_argument("--env", required=True, help="the task, as ogbench/scene-play-singletask-task1-v0")
    made.add_argument("-o", "--output", required=True, help="a new .hdf5, .npz or .csv file")
    _add_loading(made)

    made = _add(own, "corrupt", corrupt, "attack a dataset as RIQL's experiments do")
    made.add_argument("source", help="path or id")
    made.add_argument("-o", "--output", required=True, help="a new .hdf5, .npz or .csv file")
    made.add_argument("--element", default="observations", help="observations, actions, rewards or dynamics")
    made.add_argument("--mode", default="random", help="random or adversarial")
    made.add_argument("--rate", type=float, default=0.3, help="share of rows (default 0.3)")
    made.add_argument("--scale", type=float, default=1.0, help="size in standard deviations (default 1)")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--exact-count", action="store_true", help="attack exactly rate x rows")
    made.add_argument("--consistent", action="store_true", help="also change the copy in the row before")
    made.add_argument("--victim", metavar="RUN", help="run whose critics an adversarial attack is aimed at")
    made.add_argument("--victim-seed", type=int, help="which seed of it (default: its first)")
    output.add_trust(made)
    _add_loading(made)


def _add(commands: Any, name: str, function: Any, what: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what)
    made.add_argument("--json", action="store_true", help="print JSON")
    made.set_defaults(run=function)
    return made


def _add_loading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="refuse oddities that are otherwise counted")
    parser.add_argument("--view", default="corrected", help="corrected, or d4rl for qlearning_dataset's rows")
    parser.add_argument(
        "--mapping", metavar="FILE", help="mapping that says what a log's columns mean (docs/own_data.md)"
    )
    parser.add_argument(
        "--reward", metavar="MODULE:FUNCTION", help="rewards all steps at once, in place of recorded ones"
    )


def _load(arguments: argparse.Namespace, source: str | None = None) -> Dataset:
    from surefoot.tools.generate import load

    options: dict[str, Any] = {"mapping": arguments.mapping, "reward": _reward(arguments.reward)}
    with output.download_bar() as progress:
        source = source or arguments.source
        return load(source, strict=arguments.strict, view=arguments.view, progress=progress, **options)


def _reward(name: str | None) -> Any:
    """The function of a name that the user typed, whose module may be in the working directory."""
    from surefoot.experiment.trust import allow, function_of

    if name is None:
        return None
    allow(name)
    return function_of(name, "--reward")


def list_all(arguments: argparse.Namespace) -> int:
    """Embedded datasets and the catalogue."""
    from surefoot.data import CATALOGUE
    from surefoot.data.catalogue import neorl2_rows
    from surefoot.tools import suites
    from surefoot.tools.generate import embedded_facts

    rows = (
        embedded_facts()
        + suites.facts()
        + neorl2_rows()
        + [
            {
                "id": entry.id,
                "environment": entry.env_id,
                "reference_low": entry.reference[0],
                "reference_high": entry.reference[1],
                "minari": entry.minari,
                "note": entry.note,
            }
            for entry in CATALOGUE.values()
        ]
    )
    rows = [row for row in rows if arguments.pattern in row["id"]]
    if arguments.json:
        output.print_json(rows)
        return 0
    if not rows:
        raise ConfigError(f"no dataset's name contains {arguments.pattern!r}; `surefoot datasets list` shows all")
    output.print_rows(rows, ["id", "environment", "reference_low", "reference_high", "minari", "note"])
    return 0


def info(arguments: argparse.Namespace) -> int:
    """Facts of one dataset."""
    from surefoot import data
    from surefoot.data.report import measured

    dataset = _load(arguments)
    reference = None if arguments.reference is None else _load(arguments, arguments.reference)
    _show(data.info(dataset) | measured(dataset, reference), arguments.json)
    return 0


def draw_map(arguments: argparse.Namespace) -> int:
    """Datasets as points: trajectory quality against coverage."""
    from surefoot.evaluation.dataset_map import mapped, picture
    from surefoot.evaluation.plots import save_png

    if pathlib.Path(arguments.output).suffix.lower() != ".png":
        raise ConfigError(f"-o {arguments.output}: the map is drawn as a .png")
    datasets = [_load(arguments, source) for source in arguments.sources]
    reference = None if arguments.reference is None else _load(arguments, arguments.reference)
    rows = mapped(datasets, reference)
    save_png(picture(rows), arguments.output)
    if arguments.json:
        output.print_json({"output": arguments.output, "rows": rows})
        return 0
    shown = [{**row, "dataset": pathlib.Path(row["dataset"]).name, "limits_of": pathlib.Path(row["limits_of"]).name}
             for row in rows]  # fmt: skip
    columns = ["dataset", "environment", "tq", "saco", "unique_cells", "projected_coverage", "limits_of"]
    output.print_rows(shown, columns)
    if any(row["cells_saturated"] for row in rows):
        output.say("Where nine rows of ten are in cells of their own, SACo says little: see projected coverage.")
    output.say(f"map: {output.short(arguments.output)}")
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Check files; 2 if one of them is bad."""
    from surefoot import data

    if arguments.sha256 is not None and len(arguments.paths) > 1:
        raise ConfigError("--sha256 is of one file: give one path with it")
    found = [data.verify(path, arguments.sha256) for path in arguments.paths]
    if arguments.json:
        output.print_json([dataclasses.asdict(result) for result in found])
        return 0 if all(result.ok for result in found) else 2
    for result in found:
        if result.ok:
            checksum = "SHA-256 as known" if result.known_sha256 else f"SHA-256 {result.sha256}, not known before"
            output.say(
                f"{result.path}: good; {result.transitions:,} transitions, {result.episodes:,} episodes; {checksum}"
            )
            for oddity, rows in result.warnings.items():
                output.say(f"  accepted: {rows:,} rows with {oddity}")
        for problem in result.problems:
            output.say(f"surefoot: error: {problem}", stderr=True)
    return 0 if all(result.ok for result in found) else 2


def convert(arguments: argparse.Namespace) -> int:
    """Store a dataset in another format."""
    from surefoot import data
    from surefoot.envs.suites import is_benchmark
    from surefoot.tools import generate, suites

    if not generate.exists(arguments.source):
        if arguments.source in generate.EMBEDDED:
            arguments.source = str(generate.cached(arguments.source))
        elif is_benchmark(arguments.source):
            arguments.source = str(suites.recorded(arguments.source))
    if arguments.layout == "lerobot" and arguments.fps is None:
        output.say("note: without --fps, the steps a second are those that the data name, else 50", stderr=True)
    with output.episodes_bar(arguments.json, what="files") as files_done:
        dataset = data.convert(
            arguments.source,
            arguments.destination,
            strict=arguments.strict,
            view=arguments.view,
            layout=arguments.layout,
            mapping=arguments.mapping,
            reward=_reward(arguments.reward),
            fps=arguments.fps,
            files_done=files_done,
        )
    _report_written(arguments.destination, dataset, arguments.json)
    return 0


def draft(arguments: argparse.Namespace) -> int:
    """A mapping to begin with, printed or into a file."""
    from surefoot.core.files import written_aside
    from surefoot.data import logs

    source = pathlib.Path(arguments.source)
    if not source.exists():
        raise ConfigError(f"{source}: no such file or folder")
    path = None if arguments.output is None else pathlib.Path(arguments.output)
    if path is not None and path.exists():
        raise ConfigError(f"{path}: exists already; delete it or choose another name")
    text = logs.draft(source, None if path is None else path.parent)
    if path is None:
        output.print_json({"mapping": text}) if arguments.json else output.say(text.rstrip())
        return 0
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")
    if arguments.json:
        output.print_json({"output": str(path)})
    else:
        output.say(f"{output.short(path)}: correct it, then: surefoot datasets info {output.typed(path)}")
    return 0


def generate(arguments: argparse.Namespace) -> int:
    """Record an embedded dataset into the cache or a file."""
    from surefoot import data
    from surefoot.cli.config import DEFAULT_DATASET
    from surefoot.envs.suites import is_benchmark
    from surefoot.tools import generate as generated

    if is_benchmark(arguments.name or ""):
        return _record(arguments)
    if arguments.episodes is not None or arguments.workers is not None:
        raise ConfigError("--episodes and --workers are of benchmarks such as ogbench/...; give --transitions instead")
    name, transitions = arguments.name or DEFAULT_DATASET, arguments.transitions or generated.TRANSITIONS
    if arguments.transitions is not None and arguments.transitions < 1:
        raise ConfigError(f"--transitions is {arguments.transitions}; it must be at least 1")
    if arguments.output is None:
        if name not in generated.EMBEDDED:
            name = f"{generated.system_name(name)}-{arguments.behaviour or 'mixed'}"
        if transitions != generated.TRANSITIONS or arguments.gap is not None:
            raise ConfigError("other transitions or dynamics than the default go into a file of their own: add -o FILE")
        path = generated.cached(name, arguments.seed)
        dataset = data.load(path).replace(name=name)
    else:
        path = new_file(arguments.output)
        dataset = generated.generate(name, arguments.seed, transitions, arguments.behaviour, arguments.gap)
        data.save(dataset, path)
    _report_written(path, dataset, arguments.json)
    return 0


def _record(arguments: argparse.Namespace) -> int:
    """Record a benchmark's dataset into the cache or a file."""
    from surefoot.experiment.workers import cores
    from surefoot.tools import suites

    for option in ("transitions", "behaviour", "gap"):
        if getattr(arguments, option) is not None:
            raise ConfigError(f"--{option} is of native/...; {arguments.name} takes --episodes, --seed and --workers")
    episodes = suites.episodes_of(arguments.name) if arguments.episodes is None else arguments.episodes
    if arguments.output is None and episodes != suites.episodes_of(arguments.name):
        raise ConfigError("another number of episodes than the default goes into a file of its own: add -o FILE")
    path = suites.cached_path(arguments.name, arguments.seed)
    if arguments.output is not None:
        path = new_file(arguments.output)
    elif path.exists():
        raise ConfigError(
            f"{path}: is recorded already, and dataset={arguments.name} finds it; delete it to record anew"
        )
    workers = arguments.workers or min(cores(), episodes)
    try:
        with output.episodes_bar(arguments.json) as progress:
            dataset = suites.generate(arguments.name, path, episodes, arguments.seed, workers, progress)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("interrupted; the same command goes on with the episodes that are recorded") from error
    _report_written(path, dataset, arguments.json)
    return 0


def relabel(arguments: argparse.Namespace) -> int:
    """Store a dataset with the rewards of a task."""
    from surefoot import data
    from surefoot.envs.suites import OGBenchName, is_benchmark, parse
    from surefoot.tools.suites import relabelled

    path = new_file(arguments.output)
    name = parse(arguments.env) if is_benchmark(arguments.env) else None
    if not isinstance(name, OGBenchName):
        raise ConfigError(f"--env {arguments.env}: only tasks of ogbench/... give rewards to recorded states")
    dataset = relabelled(_load(arguments), name)
    data.save(dataset, path)
    _report_written(path, dataset, arguments.json)
    return 0


def corrupt(arguments: argparse.Namespace) -> int:
    """Attack a dataset and store it, with the report of what was changed beside it."""
    from surefoot import data
    from surefoot.core.files import write_json
    from surefoot.data.corrupt import corrupt as attack

    path = new_file(arguments.output)
    beside = path.with_name(path.name + ".corruption.json")
    victim = None
    if arguments.victim is not None:
        from surefoot.experiment.training import victim as load_victim

        victim = load_victim(arguments.victim, arguments.victim_seed, arguments.trust)
    dataset = _load(arguments)
    result = attack(
        dataset,
        arguments.element,
        arguments.mode,
        arguments.rate,
        arguments.scale,
        arguments.seed,
        exact_count=arguments.exact_count,
        consistent=arguments.consistent,
        victim=victim,
    )
    data.save(result.dataset, path)
    write_json(beside, result.report)
    if arguments.json:
        output.print_json({"output": str(path), "report": result.report})
        return 0
    shown = ("element", "mode", "rate", "scale", "seed", "rows", "attacked", "attacked_share", "victim")
    output.print_facts({key: result.report[key] for key in shown})
    output.say(f"\ndataset: {output.short(path)}\nreport:  {output.short(beside)}")
    return 0


def new_file(name: str) -> pathlib.Path:
    """A path to write a dataset to.

    Raises:
        ConfigError: it exists, or its ending names no format.
    """
    from surefoot.core.errors import nearest
    from surefoot.data.save import WRITERS

    path = pathlib.Path(name)
    if path.suffix.lower() not in WRITERS:
        raise ConfigError(f"{path}: the suffix {path.suffix!r} names no format: {nearest(path.suffix, list(WRITERS))}")
    if path.exists():
        raise ConfigError(f"{path}: exists already; delete it or choose another name")
    return path


def _report_written(path: Any, dataset: Dataset, as_json: bool) -> None:
    from surefoot import data

    facts = data.info(dataset)
    if as_json:
        output.print_json({"output": str(path), **facts})
        return
    mean = facts["return_mean"]
    returns = "no rewards: it can be cloned" if mean is None else f"mean return {mean:.1f}"
    output.say(f"{output.short(path)}: {len(dataset):,} transitions, {facts['episodes']:,} episodes, {returns}")
    for oddity, rows in dataset.warnings.items():
        output.say(f"  accepted: {rows:,} rows with {oddity}")


def _show(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(facts)
    else:
        output.print_facts(facts)
