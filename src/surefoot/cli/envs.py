"""`surefoot envs list | info | check`: the simulators."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.cuda_ext.system import System


def add_parser(commands: Any) -> None:
    """Register the command and its own commands."""
    parser = commands.add_parser("envs", help="list, describe and check simulators")
    own = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    what = "surefoot's simulators: native systems, MuJoCo tasks stepped in batches, and benchmarks known by name"
    made = _add(own, "list", list_all, what)
    made.add_argument("pattern", nargs="?", default="", help="only those whose name contains this")

    made = _add(own, "info", info, "describe a simulator")
    made.add_argument("env_id", metavar="ID", help="native/<system>, or any gymnasium id or module:Id")

    made = _add(own, "check", check, "report what is wrong with an environment; exit code 2 if something is")
    made.add_argument("env_id", metavar="ID", help="native/<system>, or any gymnasium id or module:Id")


def _add(commands: Any, name: str, function: Any, what: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what)
    made.add_argument("--json", action="store_true", help="print JSON")
    made.set_defaults(run=function)
    return made


def list_all(arguments: argparse.Namespace) -> int:
    """Native systems, then the other ids that surefoot registers, then those of benchmarks."""
    from surefoot.cli.support import listing

    rows = listing.kept(listing.ENVIRONMENTS, _rows)
    pattern = arguments.pattern.lower()
    rows = [row for row in rows if pattern in row["name"].lower() or pattern in row["gymnasium_id"].lower()]
    if arguments.json:
        output.print_json(rows)
        return 0
    if not rows:
        raise ConfigError(f"no environment's name contains {arguments.pattern!r}; `surefoot envs list` shows all")
    output.print_rows(rows, ["name", "gymnasium_id", "what", "observations", "actions", "steps", "constraint"])
    return 0


def _rows() -> list[dict[str, Any]]:
    """Of all environments; to make them takes the seconds that torch takes to be imported."""
    from surefoot.envs.names import PIXELS, gantry_ids, native_ids
    from surefoot.envs.systems import SYSTEMS

    rows = [_row(known()) for known in SYSTEMS.values()]
    drawn = {gym_id: name for name, (gym_id, *_) in PIXELS.items()}
    elsewhere = {*native_ids().values(), *gantry_ids().values()}
    others = [env_id for env_id in _registered() if env_id not in elsewhere]
    rows += [_pixel_row(drawn[env_id]) if env_id in drawn else _mujoco_row(env_id) for env_id in others]
    return rows + _gantry_rows() + _benchmark_rows() + _device_rows() + _team_rows()


def _registered() -> list[str]:
    import gymnasium

    import surefoot.envs  # noqa: F401  registers them

    return [str(env_id) for env_id in gymnasium.registry if str(env_id).startswith("surefoot/")]


def _row(system: System) -> dict[str, Any]:
    return {
        "name": system.alias,
        "gymnasium_id": system.gym_id,
        "what": system.title,
        "observations": len(system.observations),
        "actions": len(system.actions),
        "steps": system.max_steps,
        "constraint": system.margin_of,
    }


def _pixel_row(name: str) -> dict[str, Any]:
    from surefoot.envs.names import PIXELS
    from surefoot.envs.systems import system

    gym_id, alias, velocities = PIXELS[name]
    drawn = system(alias)
    return {
        "name": name,
        "gymnasium_id": gym_id,
        "what": f"{alias} seen by a camera: " + ("a frame and the velocities" if velocities else "three frames"),
        "observations": None,
        "actions": len(drawn.actions),
        "steps": drawn.max_steps,
        "constraint": drawn.margin_of,
    }


def _mujoco_row(env_id: str) -> dict[str, Any]:
    import gymnasium

    from surefoot.envs.names import MUJOCO_SIZES

    spec = gymnasium.spec(env_id)
    limit = spec.kwargs.get("velocity_limit")
    observations, actions = MUJOCO_SIZES[spec.kwargs["task"]]
    return {
        "name": env_id,
        "gymnasium_id": env_id,
        "what": f"MuJoCo {spec.kwargs['task']}, as gymnasium's {spec.kwargs['task']}-v5",
        "observations": observations,
        "actions": actions,
        "steps": spec.max_episode_steps,
        "constraint": None if limit is None else f"speed limit of {limit:g} m/s",
    }


def _gantry_rows() -> list[dict[str, Any]]:
    """The gantry's task and its variants, by pictures and by the state."""
    from surefoot.envs.gantry.task import VARIANTS, Gantry
    from surefoot.envs.names import GANTRY, STATE, gantry_ids

    rows: list[dict[str, Any]] = []
    for name, (_, variant, steps) in GANTRY.items():
        for known, width, seen in (
            (name, None, "two cameras"),
            (name + STATE, len(Gantry(variant=variant).names), "its state"),
        ):
            what = (
                f"{VARIANTS[variant].partition(';')[0]}: a gantry observed by {seen} (pip install 'surefoot[mujoco]')"
            )
            sizes = {"observations": width, "actions": 4, "steps": steps, "constraint": None}
            rows.append({"name": known, "gymnasium_id": gantry_ids()[known], "what": what, **sizes})
    return rows


def _device_rows() -> list[dict[str, Any]]:
    """An example of each device simulator that has environments of its own; an unknown name is answered by all."""
    examples = {
        "playground/CartpoleBalance": "MuJoCo Playground's environments (pip install 'surefoot[playground]')",
        "brax/ant": "brax's environments (pip install 'surefoot[brax]')",
        "mjx/Hopper": "gymnasium's locomotion, or an MJCF file, on MJX (pip install 'surefoot[jax]')",
        "warp/Hopper": "the same on MuJoCo Warp (pip install 'surefoot[warp]')",
    }
    sizes = dict.fromkeys(("observations", "actions", "steps", "constraint"))
    return [{"name": name, "gymnasium_id": name, "what": what, **sizes} for name, what in examples.items()]


def _team_rows() -> list[dict[str, Any]]:
    """Tasks of teams, and an example of each library whose environments have several agents."""
    examples = {
        "team:spread": "three agents that are to cover three places, one each (docs/agents.md)",
        "team:two-step": "two agents, two choices, two steps: the game of the QMIX paper",
        "pettingzoo:mpe2.simple_spread_v3": "PettingZoo's parallel environments (pip install 'surefoot[mpe]')",
        "jaxmarl:MPE_simple_spread_v3": "JaxMARL's environments (pip install 'surefoot[jaxmarl]')",
    }
    sizes = dict.fromkeys(("observations", "actions", "steps", "constraint"))
    return [{"name": name, "gymnasium_id": name, "what": what, **sizes} for name, what in examples.items()]


def _benchmark_rows() -> list[dict[str, Any]]:
    """OGBench's single tasks (the default one of each), the first of each of OCBench's families, and MBRCSL's maze."""
    from surefoot.envs.suites.names import BASES, FAMILIES, OCBenchName, OGBenchName, PointMazeName

    rows: list[dict[str, Any]] = []
    for base, facts in BASES.items():
        kind = facts.collected[0] if facts.collected else "navigate"
        name = OGBenchName(base, kind, facts.default)
        what = f"OGBench {base}, tasks 1 to 5 (pip install 'surefoot[ogbench]')"
        sizes: dict[str, Any] = {"observations": facts.observations, "actions": facts.actions, "steps": facts.steps}
        rows.append({"name": name.text, "gymnasium_id": name.gym_id, "what": what, **sizes, "constraint": None})
    for family, kinds in FAMILIES.items():
        first = OCBenchName(family, next(iter(kinds)), family != "bowling")
        types = ", ".join(filter(None, kinds)) or "one task"
        what = f"OCBench {family}: {types} (pip install 'surefoot[ocbench]')"
        sizes = {"observations": None, "actions": 7, "steps": None}
        rows.append({"name": first.text, "gymnasium_id": first.gym_id, "what": what, **sizes, "constraint": None})
    maze = PointMazeName()
    what = "a point in MBRCSL's maze (pip install 'surefoot[robotics]')"
    sizes = {"observations": 4, "actions": 2, "steps": 200}
    return [*rows, {"name": maze.text, "gymnasium_id": maze.gym_id, "what": what, **sizes, "constraint": None}]


def info(arguments: argparse.Namespace) -> int:
    """A native system's description, or the spaces of any other environment."""
    from surefoot.envs.known_systems import system_of
    from surefoot.runs.trust import allow

    allow(arguments.env_id)
    known = system_of(arguments.env_id)
    facts = _describe(arguments.env_id) if known is None else describe_system(known)
    if arguments.json:
        output.print_json(facts)
        return 0
    tables = {key: facts.pop(key) for key in ("observations", "actions", "parameters", "gaps") if key in facts}
    output.print_facts(facts)
    for title, rows in tables.items():
        if rows:
            output.say()
            output.print_rows(rows, list(rows[0]), title)
    return 0


def describe_system(system: System) -> dict[str, Any]:
    """All that a system says of itself, as JSON values."""
    from surefoot.data import reference_scores
    from surefoot.envs.names import is_native

    reference = reference_scores(system.gym_id)
    named = [*system.behaviours, *system.mixtures] if is_native(system.gym_id) else []  # of others none is made
    return {
        "name": system.alias,
        "gymnasium_id": system.gym_id,
        "what": system.title,
        "source": system.source,
        "states": list(system.states),
        "time_step": f"{system.time_step:g} s",
        "steps": system.max_steps,
        "constraint": f"margin: {system.margin_of}; cost 1 where it is negative",
        "behaviours": list(system.behaviours),
        "mixtures": {
            name: ", ".join(f"{part} {share:g}" for part, share in shares.items())
            for name, shares in system.mixtures.items()
        },
        "datasets": [f"{system.alias}-{name}" for name in named],
        "reference_low": None if reference is None else reference[0],
        "reference_high": None if reference is None else reference[1],
        "observations": _bounded(system.observations, system.observation_low, system.observation_high),
        "actions": _bounded(system.actions, system.action_low, system.action_high),
        "parameters": [
            {"parameter": p.name, "default": p.default, "low": _finite(p.low), "high": _finite(p.high)}
            | {"unit": p.unit, "what": p.meaning}
            for p in system.parameters
        ],
        "gaps": [
            {"gap": name, "sets": ", ".join(f"{key}={value:g}" for key, value in changes.items())}
            for name, changes in system.gaps.items()
        ],
    }


def _bounded(names: tuple[str, ...], low: tuple[float, ...], high: tuple[float, ...]) -> list[dict[str, Any]]:
    """Names with their ranges; an infinite bound is None."""
    return [{"name": n, "low": _finite(a), "high": _finite(b)} for n, a, b in zip(names, low, high, strict=True)]


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _describe(env_id: str) -> dict[str, Any]:
    from surefoot.envs import describe
    from surefoot.envs.make import is_team
    from surefoot.envs.training import gaps_of

    if is_team(env_id):
        return _describe_team(env_id)
    found = describe(env_id)
    gaps = gaps_of(found.env_id)
    arrays = [{"key": key, "shape": str(a.shape), "dtype": a.dtype} for key, a in found.observations.items()]
    return {
        "name": found.env_id,
        "observation_dim": found.observation_dim,
        **({"observations": arrays} if found.observation_dim is None else {}),
        "action_dim": found.action_dim,
        "action_low": found.action_low.tolist(),
        "action_high": found.action_high.tolist(),
        "steps": found.max_episode_steps,
        "simulator": found.simulator,
        **({"gaps": [{"gap": name, "what": what} for name, what in gaps.items()]} if gaps else {}),
    }


def _describe_team(env_id: str) -> dict[str, Any]:
    """Of an environment in which several agents act: what each observes and does."""
    from surefoot.core.base.spec import in_words
    from surefoot.envs.agents import RowView
    from surefoot.envs.spaces import arrays_of
    from surefoot.envs.training import make_training

    env: Any = make_training(env_id, 1, view=RowView(state=True))
    try:
        single, team = env.single_action_space, env.agents_team
        alone = arrays_of(make_training(env_id, 1).single_observation_space)
        return {
            "name": env_id,
            "agents": ", ".join(team.names),
            "each_observes": in_words(alone) + (", its one-hot number among them" if team.agents > 1 else ""),
            "each_does": str(single),
            "state": f"{team.state_dim} numbers, for critics and mixing networks alone",
            "steps": env.max_episode_steps,
        }
    finally:
        env.close()


def check(arguments: argparse.Namespace) -> int:
    """Step an environment with random actions in all the ways that surefoot relies on; 2 where it breaks a promise."""
    from surefoot.envs.check import check_environment
    from surefoot.envs.names import gymnasium_id
    from surefoot.runs.trust import allow

    allow(arguments.env_id)
    findings = check_environment(gymnasium_id(arguments.env_id))
    if arguments.json:
        output.print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        for finding in findings:
            output.say(finding)
        output.say(
            f"{arguments.env_id}: {output.counted(len(findings), 'finding')}"
            if findings
            else f"{arguments.env_id}: nothing is wrong"
        )
    return 2 if any(finding.level == "error" for finding in findings) else 0
