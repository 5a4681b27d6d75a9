"""`surefoot export`: a policy as one file for other programs."""

from __future__ import annotations

import argparse
import functools
import pathlib
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import filters, output
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.safety.shield import Shield


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("export", help="write a policy as one file for other programs")
    parser.add_argument("folder", metavar="RUN", help="run folder, or a policy's .safetensors")
    parser.add_argument("-o", "--output", required=True, help="policy.onnx, .pt2, .hpp (a C++ header) or .safetensors")
    parser.add_argument("--policy-seed", type=int, metavar="K", help="which of RUN's policies (default: its first)")
    output.add_renamed(parser, "--seed", "--policy-seed")
    parser.add_argument("--agent", metavar="NAME", help="export the policy of one agent of a team")
    parser.add_argument("--sampling", action="store_true", help="with noise as an input, for random actions")
    parser.add_argument(
        "--filter", default="none", help="safety filter of every action: none, reach or cbf (default none)"
    )
    parser.add_argument(
        "--safe-set", metavar="FILE", help="the filter's safe set, from surefoot reach (default: computed now)"
    )
    parser.add_argument("--margin", type=float, help="the filter's margin (default: as large as needed)")
    parser.add_argument("--env", help="the filter's system: native/<system> or module:python/NAME-v0 (default: RUN's)")
    output.add_trust(parser)
    parser.set_defaults(run=export, quiet=False, json=False)


def _filter(arguments: argparse.Namespace, policy: Any, path: pathlib.Path) -> Shield | None:
    """The filter that is exported with the policy; None where none is asked for."""
    from surefoot.envs import check_spaces
    from surefoot.envs.names import gymnasium_id
    from surefoot.runs.run import Run
    from surefoot.runs.trust import allow, require_trust

    if arguments.filter == "none" and arguments.env is not None:
        raise ConfigError("--env is of a filter; add --filter reach or --filter cbf")
    env = arguments.env
    if arguments.filter != "none":
        if path.suffix == ".hpp" and arguments.filter != "reach":
            raise ConfigError(f"--filter {arguments.filter}: a C++ header holds the reach filter; export to .onnx")
        if env is None and pathlib.Path(arguments.folder).is_dir():
            env = Run.open(arguments.folder).plan.environment
        if env is None:
            raise ConfigError(f"{arguments.folder}: says no system; name the filter's with --env native/<system>")
        allow(arguments.env)
        require_trust(env, pathlib.Path(arguments.folder) / "config.json", arguments.trust)
        check_spaces(gymnasium_id(env), policy.arrays, policy.action_dim, policy.discrete)
    return filters.shield_of(arguments, str(env))


def _of_agent(policy: Any, arguments: argparse.Namespace) -> Any:
    """The policy of the agent that --agent names."""
    from surefoot.core.policy.one_agent import of_agent
    from surefoot.runs.run import Run

    team = Run.open(arguments.folder).spec.team if pathlib.Path(arguments.folder).is_dir() else None
    if team is None:
        raise ConfigError(
            f"--agent: {arguments.folder} is no run in which several agents act: leave it out, or name the run folder"
        )
    return of_agent(policy, team, arguments.agent)


def export(arguments: argparse.Namespace) -> int:
    """Write one policy in the format that the file's ending names."""
    import warnings

    import torch

    import surefoot
    from surefoot.core.policy.cpp import name_of as cpp_name
    from surefoot.core.policy.export import example

    path = pathlib.Path(arguments.output)
    if path.suffix not in (".onnx", ".pt2", ".safetensors", ".hpp"):
        raise ConfigError(
            f"{path}: its ending names no format; a policy is exported to .onnx, .pt2, .hpp (C++) or .safetensors"
        )
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file")
    policy: Any = surefoot.load_policy(arguments.folder, arguments.policy_seed)
    if arguments.agent is not None:
        policy = _of_agent(policy, arguments)
    shield = _filter(arguments, policy, path)
    if path.suffix == ".safetensors":
        if arguments.sampling:
            raise ConfigError("--sampling: a .safetensors policy holds both forms already; leave it out")
        (policy.save if shield is None else functools.partial(shield.save, policy))(path)
        beside = "" if shield is None else f", the filter {output.short(path.with_suffix('.filter.npz'))}"
        output.say(f"policy: {output.short(path)} and {output.short(path.with_suffix('.json'))}{beside}")
        return 0
    discrete, kind = policy.discrete, "Policy" if shield is None else "FilteredPolicy"
    policy = policy if shield is None else shield.around(policy)
    if path.suffix == ".hpp":
        if arguments.sampling:
            raise ConfigError("--sampling: a C++ header gives the mean action; export samples to .onnx")
        policy.export(path)
        act = f"{cpp_name(path)}::{kind}::" + ("choose(observation)" if discrete else "act(observation, action)")
        output.say(
            f"policy: {output.short(path)}\n{act}: {policy.observation_dim} numbers -> "
            f"{'a choice' if discrete else f'{policy.action_dim} numbers'}; compile with -O3 -march=native"
        )
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters' own, about torch's internals
        policy.export(path, sampling=arguments.sampling)
    inputs = example(policy, arguments.sampling)
    memory = {f"memory.{name}": value for name, value in inputs.pop("memory", {}).items()}
    seen = inputs.pop("observations")
    tensors = {**(seen if isinstance(seen, dict) else {"observations": seen}), **inputs, **memory}
    shapes = {name: ", ".join(["batch", *map(str, value.shape[1:])]) for name, value in tensors.items()}
    kinds = {name: ", uint8" if value.dtype == torch.uint8 else "" for name, value in tensors.items()}
    listed = ", ".join(f"{name} ({shape}){kinds[name]}" for name, shape in shapes.items() if name != "noise")
    noise = f" and noise ({shapes['noise']}), standard normal" if "noise" in shapes else ""
    given = "choices (batch), int64" if discrete else f"actions (batch, {policy.action_dim}), float32"
    following = ", " + ", ".join(f"{name}.next" for name in memory) if memory else ""
    output.say(f"policy: {output.short(path)}\n{listed}{noise} -> {given}{following}")
    return 0
