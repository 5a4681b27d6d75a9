"""`surefoot datasets generate | record | relabel | objective | corrupt`: datasets that are made."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from surefoot.cli.support import output
from surefoot.cli.support.dataset_files import add, add_loading, load, new_file, new_folder, report_lost, report_written
from surefoot.core.base.errors import ConfigError

RATE = 10.0
"""Steps a second of an environment that a person acts in, by default."""


def add_parsers(own: Any) -> None:
    """Register the commands among those of `surefoot datasets`."""
    made = add(own, "generate", generate, "record a dataset by scripted behaviours")
    made.add_argument(
        "name",
        nargs="?",
        help="native/<system>, native/<system>-<behaviour>, ogbench/<environment>-<behaviour>, ocbench/<environment>, "
        "pointmaze/stitch, or gantry-pick (default: the main job's)",
    )
    made.add_argument("-o", "--output", help="a new file (default: the cache; dataset=NAME finds that of --seed 0)")
    made.add_argument("--seed", type=int, default=0, help="of the recording (default 0)")
    made.add_argument("--transitions", type=int, help="rounded up to whole episodes (default: as embedded)")
    made.add_argument(
        "--behaviour", help="of the system (default: the one in the name, else mixed; of gantry-pick expert)"
    )
    made.add_argument("--gap", help="preset of perturbed dynamics, as `surefoot envs info` lists them")
    made.add_argument(
        "--episodes", type=int, help="of a benchmark's dataset (default: 1000, of ocbench 500, of gantry-pick 100)"
    )
    made.add_argument("--workers", type=int, help="processes that record a benchmark's dataset (default: one a core)")

    made = add(own, "record", record, "record a dataset by trained policies or by a person, in any environment")
    made.add_argument("runs", metavar="RUN", nargs="*", help="run folders, or policies' .safetensors")
    made.add_argument(
        "-o",
        "--output",
        required=True,
        help="a new .hdf5, .npz, .parquet or .csv file; with --device also a folder, as a LeRobot dataset",
    )
    made.add_argument("--episodes", type=int, default=100, help="of each policy (default 100)")
    made.add_argument(
        "--device",
        metavar="NAME",
        help="a person acts, or takes over from the one RUN: keyboard, gamepad or module:function (docs/people.md)",
    )
    made.add_argument("--gripper", action="store_true", help="with --device: the last action is a gripper's")
    made.add_argument("--rate", type=float, metavar="HZ", help="with --device: steps a second at most (default 10)")
    made.add_argument("--mean", action="store_true", help="mean actions, instead of drawn ones as in training")
    made.add_argument("--policy-seed", type=int, metavar="K", help="which of a RUN's policies (default: all of them)")
    made.add_argument("--env", help="where they act (default: where each RUN was evaluated, which must be the same)")
    made.add_argument("--seed", type=int, default=0, help="of initial states and noise (default 0)")
    output.add_trust(made)

    made = add(own, "relabel", relabel, "give data recorded in OGBench the rewards of one of its tasks")
    made.add_argument("source", help="path or id, with the simulator's states in it")
    made.add_argument("--env", required=True, help="the task, as ogbench/scene-play-singletask-task1-v0")
    made.add_argument("-o", "--output", required=True, help="a new .hdf5, .npz, .parquet or .csv file")
    add_loading(made)

    made = add(own, "objective", give_objective, "give data the rewards, costs and ends of a formula or reward machine")
    made.add_argument("source", help="path or id, with observations that are one vector")
    made.add_argument("--objective", required=True, help="a formula, or a reward machine's .json (docs/objectives.md)")
    made.add_argument("--labels", required=True, metavar="MODULE:FUNCTION", help="what holds in each step")
    made.add_argument(
        "--counterfactual",
        action="store_true",
        help="each step from every state of the machine, not only the real one",
    )
    made.add_argument("-o", "--output", required=True, help="a new .hdf5, .npz, .parquet or .csv file")
    add_loading(made)

    made = add(own, "corrupt", corrupt, "attack a dataset as RIQL's experiments do")
    made.add_argument("source", help="path or id")
    made.add_argument("-o", "--output", required=True, help="a new .hdf5, .npz, .parquet or .csv file")
    made.add_argument("--element", default="observations", help="observations, actions, rewards or dynamics")
    made.add_argument("--mode", default="random", help="random or adversarial")
    made.add_argument("--rate", type=float, default=0.3, help="share of rows (default 0.3)")
    made.add_argument("--scale", type=float, default=1.0, help="size in standard deviations (default 1)")
    made.add_argument("--seed", type=int, default=0, help="of the attack (default 0)")
    made.add_argument("--exact-count", action="store_true", help="attack exactly rate x rows")
    made.add_argument("--consistent", action="store_true", help="also change the copy in the row before")
    made.add_argument("--victim", metavar="RUN", help="run whose critics an adversarial attack is aimed at")
    made.add_argument("--victim-seed", type=int, help="which seed of it (default: its first)")
    output.add_trust(made)
    add_loading(made)


def generate(arguments: argparse.Namespace) -> int:
    """Record an embedded dataset into the cache or a file."""
    from surefoot import data
    from surefoot.cli.support.config import DEFAULT_DATASET
    from surefoot.envs.names import gantry_ids, short_name
    from surefoot.envs.suites import is_benchmark
    from surefoot.runs import embedded as generated

    if is_benchmark(arguments.name or ""):
        return _record(arguments)
    if short_name(arguments.name or "") in gantry_ids():
        return _demonstrate(arguments)
    if arguments.episodes is not None or arguments.workers is not None:
        raise ConfigError("--episodes and --workers are of benchmarks such as ogbench/...; give --transitions instead")
    name, transitions = arguments.name or DEFAULT_DATASET, arguments.transitions or generated.TRANSITIONS
    if arguments.transitions is not None and arguments.transitions < 1:
        raise ConfigError(f"--transitions is {arguments.transitions}; it must be at least 1")
    if arguments.output is None:
        if generated.find(name):
            generated.check_behaviour(name, arguments.behaviour)
        else:
            name = f"{generated.system_name(name)}-{arguments.behaviour or 'mixed'}"
        if transitions != generated.TRANSITIONS or arguments.gap is not None:
            raise ConfigError("other transitions or dynamics than the default go into a file of their own: add -o FILE")
        path = generated.cached(name, arguments.seed)
        dataset = data.load(path).replace(name=name)
    else:
        path = new_file(arguments.output)
        dataset = generated.generate(name, arguments.seed, transitions, arguments.behaviour, arguments.gap)
        data.save(dataset, path)
        report_lost(dataset, path)
    report_written(path, dataset, arguments.json)
    return 0


def _demonstrate(arguments: argparse.Namespace) -> int:
    """Record demonstrations of a scripted expert into a file."""
    from surefoot import data
    from surefoot.play import demonstrations

    for option in ("transitions", "gap", "workers"):
        if getattr(arguments, option) is not None:
            raise ConfigError(f"--{option}: {arguments.name} takes --episodes, --behaviour and --seed")
    if arguments.output is None:
        raise ConfigError(f"demonstrations of {arguments.name} go into a file of their own: add -o FILE.hdf5")
    path = new_file(arguments.output)
    episodes = demonstrations.EPISODES if arguments.episodes is None else arguments.episodes
    behaviour = arguments.behaviour or demonstrations.EXPERT
    with output.episodes_bar(arguments.json) as progress:
        dataset = demonstrations.demonstrate(arguments.name, episodes, arguments.seed, behaviour, progress)
    data.save(dataset, path)
    report_lost(dataset, path)
    report_written(path, dataset, arguments.json)
    return 0


def _record(arguments: argparse.Namespace) -> int:
    """Record a benchmark's dataset into the cache or a file."""
    from surefoot.runs import recorded as suites
    from surefoot.runs.machine import cores

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
        raise KeyboardInterrupt("interrupted; the same command continues the episodes that are recorded") from error
    if arguments.output is not None:
        report_lost(dataset, path)
    report_written(path, dataset, arguments.json)
    return 0


def record(arguments: argparse.Namespace) -> int:
    """Play episodes of runs' policies, and store them."""
    from surefoot import data
    from surefoot.play.actors import Actor, actor, can_draw, drawing
    from surefoot.play.record import record as recorded
    from surefoot.runs.run import Run
    from surefoot.runs.trust import allow

    if arguments.device is not None:
        return _played(arguments)
    if not arguments.runs or arguments.gripper or arguments.rate is not None:
        option = "--gripper and --rate are of a person's device" if arguments.runs else "no one acts"
        raise ConfigError(f"{option}: give RUNs, or --device keyboard --env ID for a person")
    path = new_file(arguments.output)
    allow(arguments.env)
    acting: list[Actor] = []
    for run in arguments.runs:
        seeds: list[int | None] = [arguments.policy_seed]
        if arguments.policy_seed is None and pathlib.Path(run).is_dir():
            seeds = list(Run.open(run).plan.seeds)
        acting += [actor(run, None, arguments.env, seed, arguments.trust) for seed in seeds]
    if not arguments.mean:
        still = [one.label for one in acting if not can_draw(one)]
        if still:
            output.say(f"note: has no distribution to draw from, and acts as it is: {'; '.join(still)}", stderr=True)
        acting = [drawing(one) if can_draw(one) else one for one in acting]
    with output.episodes_bar(arguments.json) as progress:
        dataset = recorded(acting, arguments.episodes, arguments.seed, arguments.env, progress=progress)
    data.save(dataset, path)
    report_lost(dataset, path)
    report_written(path, dataset, arguments.json)
    return 0


def _played(arguments: argparse.Namespace) -> int:
    """Record what a person does, alone or beside a policy."""
    from surefoot import data
    from surefoot.core.policy.control_loop import ControlLoop
    from surefoot.play.actors import actor
    from surefoot.play.teleop import device_of, play
    from surefoot.runs.trust import allow

    folder = not pathlib.Path(arguments.output).suffix
    path = new_folder(arguments.output) if folder else new_file(arguments.output)
    allow(arguments.env)
    if len(arguments.runs) > 1 or (not arguments.runs and arguments.env is None):
        raise ConfigError("with --device give one RUN to take over from, or none and --env ID")
    one = None
    if arguments.runs:
        one = actor(arguments.runs[0], None, arguments.env, arguments.policy_seed, arguments.trust)
        if not isinstance(one.policy, ControlLoop):
            raise ConfigError(f"{one.label}: a person takes over from policies of trained runs alone")
    where = arguments.env or (one.env_id if one is not None else "")
    dataset = play(
        where,
        lambda actions: device_of(arguments.device, actions, arguments.gripper),
        arguments.episodes,
        policy=one.policy if one is not None and isinstance(one.policy, ControlLoop) else None,
        seed=arguments.seed,
        rate=RATE if arguments.rate is None else arguments.rate,
        notify=lambda text: output.say(text, stderr=True),
    )
    data.save(dataset, path, "lerobot" if folder else None)
    report_lost(dataset, path, "lerobot" if folder else None)
    report_written(path, dataset, arguments.json)
    return 0


def relabel(arguments: argparse.Namespace) -> int:
    """Store a dataset with the rewards of a task."""
    from surefoot import data
    from surefoot.envs.suites import OGBenchName, is_benchmark, parse
    from surefoot.runs.recorded import relabelled

    path = new_file(arguments.output)
    name = parse(arguments.env) if is_benchmark(arguments.env) else None
    if not isinstance(name, OGBenchName):
        raise ConfigError(f"--env {arguments.env}: only tasks of ogbench/... give rewards to recorded states")
    dataset = relabelled(load(arguments), name)
    data.save(dataset, path)
    report_lost(dataset, path)
    report_written(path, dataset, arguments.json)
    return 0


def give_objective(arguments: argparse.Namespace) -> int:
    """Store a dataset as it would have been recorded with an objective."""
    from surefoot import data
    from surefoot.envs.objectives.named import named
    from surefoot.runs.objective_data import stated_in, with_objective
    from surefoot.runs.trust import FunctionName, allow

    path = new_file(arguments.output)
    allow(FunctionName(arguments.labels))
    stated = stated_in(named("none", arguments.objective, arguments.labels))
    source = load(arguments)
    dataset = with_objective(source, stated, arguments.counterfactual)
    data.save(dataset, path)
    report_lost(dataset, path)
    report_written(path, dataset, arguments.json)
    return 0


def corrupt(arguments: argparse.Namespace) -> int:
    """Attack a dataset and store it, with the report of what was changed beside it."""
    from surefoot import data
    from surefoot.core.base.files import write_json
    from surefoot.data.corrupt import corrupt as attack

    path = new_file(arguments.output)
    beside = path.with_name(path.name + ".corruption.json")
    if beside.exists():
        raise ConfigError(f"{beside}: exists already; delete it or choose another name")
    victim = None
    if arguments.victim is not None:
        from surefoot.runs.victim import victim as load_victim

        victim = load_victim(arguments.victim, arguments.victim_seed, arguments.trust)
    dataset = load(arguments)
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
    report_lost(result.dataset, path)
    if arguments.json:
        output.print_json({"output": str(path), "report": result.report})
        return 0
    shown = ("element", "mode", "rate", "scale", "seed", "rows", "attacked", "attacked_share", "victim")
    output.print_facts({key: result.report[key] for key in shown})
    output.say(f"\ndataset: {output.short(path)}\nreport:  {output.short(beside)}")
    return 0
