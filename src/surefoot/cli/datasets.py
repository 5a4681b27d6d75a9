"""`surefoot datasets`: list, info, map, verify, convert, pack, draft, and what makes datasets."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from typing import Any

from surefoot.cli.support import dataset_making, output
from surefoot.cli.support.dataset_files import (
    add,
    add_loading,
    load,
    load_any,
    report_left_out,
    report_lost,
    report_written,
    reward_of,
    show,
)
from surefoot.core.base.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Register the command and its own commands."""
    parser = commands.add_parser(
        "datasets",
        help="list, inspect, map, check, convert, pack, generate, record, relabel, corrupt datasets, and read your own",
    )
    own = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    made = add(
        own,
        "list",
        list_all,
        "all known datasets: environment, reference scores, quality and coverage",
    )
    made.add_argument("pattern", nargs="?", default="", help="only those whose name contains this")

    made = add(own, "info", info, "what a dataset holds")
    made.add_argument("source", help="path or id")
    made.add_argument("--reference", metavar="FILE", help="dataset of the same task against which coverage is counted")
    add_loading(made)

    made = add(own, "map", draw_map, "draw datasets by the quality of their episodes and by what they cover")
    made.add_argument("sources", metavar="FILE", nargs="+", help="paths or ids; those of one environment are compared")
    made.add_argument("-o", "--output", default="map.png", help="the picture (default map.png)")
    made.add_argument("--reference", metavar="FILE", help="of all of them (default: of each task the widest)")
    add_loading(made)

    made = add(own, "verify", verify, "check files and compare them with their SHA-256; exit code 2 if one is bad")
    made.add_argument("paths", metavar="PATH", nargs="+", help="files to check")
    made.add_argument("--sha256", help="what it must be (one path only; default: PATH.sha256 where it exists)")

    made = add(own, "convert", convert, "store a dataset in another format")
    made.add_argument("source", help="path or id")
    made.add_argument("destination", help="a new .hdf5, .npz, .parquet or .csv file, a folder, or minari/<id>")
    made.add_argument(
        "--layout", help="of another project: ogbench, dppo (.npz), robomimic (.hdf5) or lerobot (a folder)"
    )
    made.add_argument("--fps", type=float, help="steps a second that it was recorded at, for LeRobot's layout")
    add_loading(made)

    made = add(own, "pack", pack, "make a store on disk of files, for data beyond memory (docs/scale.md)")
    made.add_argument("sources", metavar="FILE", nargs="+", help="paths or ids of the same columns, one after another")
    made.add_argument("-o", "--output", required=True, help="a new folder; where it was stopped, it continues")
    add_loading(made)

    made = add(own, "draft", draft, "start a mapping: what the columns of a log of your own mean")
    made.add_argument(
        "sources",
        metavar="LOG",
        nargs="+",
        help="a CSV, Parquet, NPZ, HDF5 or MCAP file, a ROS 2 bag or a LeRobot dataset; or several of one kind",
    )
    made.add_argument("-o", "--output", help="a new .yaml file (default: it is printed)")
    dataset_making.add_parsers(own)


def list_all(arguments: argparse.Namespace) -> int:
    """Embedded datasets and the catalogue."""
    from surefoot.data import CATALOGUE
    from surefoot.data.catalogue import neorl2_rows
    from surefoot.runs import recorded as suites
    from surefoot.runs.embedded import embedded_facts

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
    rows = [row for row in rows if arguments.pattern.lower() in row["id"].lower()]
    if arguments.json:
        output.print_json(rows)
        return 0
    if not rows:
        raise ConfigError(f"no dataset's name contains {arguments.pattern!r}; `surefoot datasets list` shows all")
    known = ["tq", "saco", "projected_coverage"] if any("tq" in row for row in rows) else []
    output.print_rows(rows, ["id", "environment", "reference_low", "reference_high", *known, "minari", "note"])
    return 0


def info(arguments: argparse.Namespace) -> int:
    """Facts of one dataset."""
    from surefoot import data
    from surefoot.data.report import measured

    dataset = load(arguments)
    reference = None if arguments.reference is None else load_any(arguments, arguments.reference)
    show(data.info(dataset) | measured(dataset, reference), arguments.json)
    report_left_out(dataset)
    return 0


def draw_map(arguments: argparse.Namespace) -> int:
    """Datasets as points: trajectory quality against coverage."""
    from surefoot.evaluation.dataset_map import mapped, picture
    from surefoot.evaluation.plots import save_png

    if pathlib.Path(arguments.output).suffix.lower() != ".png":
        raise ConfigError(f"-o {arguments.output}: the map is drawn as a .png")
    datasets = [load_any(arguments, source) for source in arguments.sources]
    reference = None if arguments.reference is None else load_any(arguments, arguments.reference)
    rows = mapped(datasets, reference)
    save_png(picture(rows), arguments.output)
    if arguments.json:
        output.print_json({"output": arguments.output, "rows": rows})
        return 0
    names = ("dataset", "saco_of", "limits_of")
    shown = [{**row, **{name: pathlib.Path(row[name]).name for name in names if row[name]}} for row in rows]
    columns = ["dataset", "environment", "tq", "saco", "saco_of", "unique_cells", "projected_coverage", "limits_of"]
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
            for remark in result.remarks:
                output.say(f"  {remark}")
        for problem in result.problems:
            output.say(f"surefoot: error: {problem}", stderr=True)
    return 0 if all(result.ok for result in found) else 2


def convert(arguments: argparse.Namespace) -> int:
    """Store a dataset in another format."""
    from surefoot import data
    from surefoot.data.formats.lerobot_write import fps_of
    from surefoot.envs.suites import is_benchmark
    from surefoot.runs import embedded as generate
    from surefoot.runs import recorded as suites

    if not generate.exists(arguments.source):
        if generate.find(arguments.source):
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
            max_episode_steps=arguments.max_episode_steps,
            layout=arguments.layout,
            mapping=arguments.mapping,
            reward=reward_of(arguments.reward),
            fps=arguments.fps,
            files_done=files_done,
            image_size=arguments.image_size,
            cameras=arguments.cameras,
        )
    report_left_out(dataset)
    report_lost(dataset, arguments.destination, arguments.layout)
    if arguments.layout == "lerobot" and isinstance(fps := fps_of(dataset), float):
        output.say(
            f"note: {arguments.destination} says fps {fps:g}, as its times do; LeRobot's own tools write whole numbers "
            "only, and some may refuse another",
            stderr=True,
        )
    report_written(arguments.destination, dataset, arguments.json)
    return 0


def pack(arguments: argparse.Namespace) -> int:
    """Make a store on disk of files, in blocks."""
    from surefoot import data
    from surefoot.envs.suites import is_benchmark
    from surefoot.runs import embedded as generate
    from surefoot.runs import recorded as suites

    sources = list(arguments.sources)
    for number, source in enumerate(sources):
        if generate.exists(source):
            continue
        if generate.find(source):
            sources[number] = str(generate.cached(source))
        elif is_benchmark(source):
            sources[number] = str(suites.recorded(source))
    try:
        with output.episodes_bar(arguments.json, what="rows") as progress:
            made = data.pack(
                sources,
                arguments.output,
                strict=arguments.strict,
                view=arguments.view,
                max_episode_steps=arguments.max_episode_steps,
                mapping=arguments.mapping,
                reward=reward_of(arguments.reward),
                image_size=arguments.image_size,
                cameras=arguments.cameras,
                tell=lambda text: output.say(text, stderr=True),
                progress=progress,
            )
    except KeyboardInterrupt:
        output.say(f"{arguments.output}: stopped; the same command continues where it was", stderr=True)
        raise
    if arguments.json:
        output.print_json(dataclasses.asdict(made))
        return 0
    output.say(
        f"{output.short(made.path)}: {made.rows:,} transitions, {made.episodes:,} episodes, "
        f"{made.nbytes / 1e9:,.2f} GB, in {made.seconds:,.0f} s; SHA-256 {made.sha256}"
    )
    output.say(f"next: surefoot train dataset={output.typed(made.path)} ...")
    return 0


def draft(arguments: argparse.Namespace) -> int:
    """A mapping to begin with, printed or into a file."""
    from surefoot.core.base.files import written_aside
    from surefoot.data import logs

    sources = [pathlib.Path(source) for source in arguments.sources]
    if missing := [str(source) for source in sources if not source.exists()]:
        raise ConfigError(f"{', '.join(missing)}: no such file or folder")
    path = None if arguments.output is None else pathlib.Path(arguments.output)
    if path is not None and path.exists():
        raise ConfigError(f"{path}: exists already; delete it or choose another name")
    text = logs.draft(sources, None if path is None else path.parent)
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
