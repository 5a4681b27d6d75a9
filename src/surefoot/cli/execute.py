"""`surefoot execute`: a policy whose inference takes time, in a simulator where control time is simulated."""

from __future__ import annotations

import argparse
from typing import Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

MEASURED = "measured"


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "execute", help="a policy of chunks at a fixed control rate while inference takes time"
    )
    parser.add_argument("policy_run", metavar="RUN", help="run folder, or a policy's .safetensors")
    parser.add_argument("--policy-seed", type=int, metavar="K", help="which of RUN's policies (default: its first)")
    parser.add_argument("--env", help="native/<system> or another id (default: the one that RUN was evaluated in)")
    parser.add_argument(
        "--rate", type=float, help="control ticks a second, one step each (default: a native system's own, else 50)"
    )
    law = parser.add_argument_group("what inference takes, in seconds of control time")
    law.add_argument("--latency", default="0.08", help=f"seconds, or {MEASURED}: what it takes here (default 0.08)")
    law.add_argument("--jitter", type=float, default=0.0, help="uniform, up to this much more or less (default 0)")
    law.add_argument("--spike", type=float, default=0.0, help="longer time of some inferences (default 0: none)")
    law.add_argument("--spike-share", type=float, default=0.01, help="share of such inferences (default 0.01)")
    how = parser.add_argument_group("how chunks are played (docs/execution.md)")
    how.add_argument(
        "--mode",
        help="synchronous, asynchronous, blend or ensemble (default: asynchronous where chunks are long enough)",
    )
    how.add_argument("--execute", type=int, metavar="N", help="ticks between two observations used for planning")
    how.add_argument(
        "--deadline", type=float, help="seconds after which a chunk takes over (default: latency and jitter)"
    )
    how.add_argument("--late", help="continue, hold or decelerate while a chunk is late (default continue)")
    how.add_argument(
        "--safe-action", metavar="X,X,...", help="action to decelerate to; one number is used for all dimensions"
    )
    how.add_argument("--stop-time", type=float, help="seconds until the safe action is reached (default 0.2)")
    how.add_argument("--fade-ticks", type=int, help="of a blend (default 4)")
    how.add_argument("--fade", help="of a blend: linear or cosine (default linear)")
    how.add_argument("--decay", type=float, help="of an ensemble: weight exp(-decay i), oldest first (default 0.01)")
    how.add_argument("--max-rate", metavar="X[,X...]", help="bound on the change of actions, in their units a second")
    how.add_argument(
        "--guidance",
        type=float,
        metavar="BETA",
        help="guides a flow's new chunks towards the actions already planned, such as 5",
    )
    how.add_argument(
        "--first", help="wait for an episode's first chunk, or safe: start with the safe action (default wait)"
    )
    parser.add_argument(
        "--episodes", type=int, default=20, help="number of episodes, with and without the latency (default 20)"
    )
    parser.add_argument("--seed", type=int, default=2, help="of initial states and latencies (default 2, as evaluate)")
    output.add_trust(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _numbers(name: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}; it is a number, or several with commas between them") from error


def run(arguments: argparse.Namespace) -> int:
    """Episodes with and without the latency, and what they came to."""
    from surefoot.core.policy.policy import Policy
    from surefoot.play.actors import actor
    from surefoot.play.execute import Latency, execute, settings_for, usual_rate
    from surefoot.runs.trust import allow

    if arguments.seed < 0:
        raise ConfigError(f"--seed is {arguments.seed}; it must be 0 or more")
    mean = None if arguments.latency == MEASURED else _numbers("--latency", arguments.latency)
    if mean is not None and len(mean) > 1:
        raise ConfigError(f"--latency is {arguments.latency!r}; it is one number of seconds, or {MEASURED}")
    latency = Latency(
        None if mean is None else mean[0], arguments.jitter, arguments.spike, arguments.spike_share, arguments.seed
    )
    allow(arguments.env)
    chosen = actor(arguments.policy_run, None, arguments.env, arguments.policy_seed, arguments.trust)
    policy = chosen.policy
    assert isinstance(policy, Policy)  # of a RUN it always is
    safe, bound = _numbers("--safe-action", arguments.safe_action), _numbers("--max-rate", arguments.max_rate)
    names = ("execute", "deadline", "late", "stop_time", "fade_ticks", "fade", "decay", "first")
    settings = settings_for(
        policy,
        latency,
        usual_rate(chosen.env_id) if arguments.rate is None else arguments.rate,
        arguments.mode,
        arguments.guidance,
        safe_action=safe * policy.action_dim if safe is not None and len(safe) == 1 else safe,
        max_rate=bound[0] if bound is not None and len(bound) == 1 else bound,
        **{name: getattr(arguments, name) for name in names},
    )
    with output.episodes_bar(arguments.quiet or arguments.json, lines=False) as progress:
        done = execute(
            policy, chosen.env_id, settings, latency, arguments.episodes, arguments.seed, progress, arguments.guidance
        )
    facts = {"policy": chosen.label, "environment": chosen.env_id, **done.to_json(), "seed": arguments.seed}
    facts["guidance"] = arguments.guidance
    if arguments.json:
        output.print_json(facts)
    else:
        print_summary(facts)
    return 0


def print_summary(facts: dict[str, Any]) -> None:
    """The same for people."""
    from surefoot.evaluation.tables import format_bounds, format_share

    counts, rate = facts["counts"], facts["rate"]

    def times(found: dict[str, float]) -> str:
        return ", ".join(f"{name} {value:.3g}" for name, value in found.items()) + " ms"

    shown = {name: facts[name] for name in ("policy", "environment")}
    shown["execution"] = (
        f"{facts['mode']}, {rate:g} ticks/s, {facts['execute']} of {facts['chunk']} actions, deadline "
        f"{1000 * facts['deadline']:.3g} ms ({facts['delay']} ticks)"
    )
    shown["episodes"] = f"{facts['episodes']:,} of {facts['length_mean']:.1f} ticks on average"
    shown["return"] = (
        f"{format_bounds(facts['returns'])}; without a latency {format_bounds(facts['immediate_returns'])}, "
        f"difference {format_bounds(facts['difference'])}"
    )
    if facts["success"] is not None:
        shown["success"] = f"{format_share(facts['success'])} %"
        if facts["immediate_success"] is not None:
            shown["success"] += f"; without a latency {format_share(facts['immediate_success'])} %"
    shown["latency"] = f"{times(facts['latency'])} of control time"
    shown["inference_here"] = times(facts["measured"])
    shown["late_chunks"] = f"{counts['late']:,} of {counts['received']:,} ({100 * facts['late_share']:.2g} %)"
    shown["held_ticks"] = f"{counts['held']:,} of {counts['ticks']:,} ({100 * facts['held_share']:.2g} %)"
    shown["planned_actions"] = (
        f"{counts['played']:,} played, {counts['stale']:,} stale, {counts['replaced']:,} replaced by newer ones, "
        f"{counts['dropped']:,} left at an episode's end"
    )
    shown["largest_jump"] = f"{counts['largest_jump']:.4g} between two ticks"
    if facts["max_rate"] is not None:
        shown["rate_bound"] = f"reached in {counts['limited']:,} ticks"
    output.print_facts(shown)
    if facts["gap"]:
        reason = (
            f"the robot waits {facts['gap']} ticks for each chunk"
            if facts["mode"] == "synchronous"
            else f"chunks of {facts['chunk']} actions end {facts['gap']} ticks before the next one's deadline"
        )
        output.say(
            f"*** {reason}; plan longer chunks, play fewer actions of each, or make inference faster", stderr=True
        )
