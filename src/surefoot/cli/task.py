"""`surefoot task`: a policy for a reward or a goal that training never saw."""

from __future__ import annotations

import argparse
from typing import Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("task", help="give a zero-shot policy a reward or a goal, without training")
    parser.add_argument("folder", metavar="RUN", help="run folder of fb, vc_fb, mc_fb or hilp")
    parser.add_argument(
        "--reward",
        metavar="MODULE:FUNCTION",
        help="(observations, actions, next observations) -> (N,) rewards of the next observations (default: the data's "
        "own)",
    )
    parser.add_argument("--goal", metavar="X,Y,...", help="an observation to reach, in place of a reward (fb alone)")
    parser.add_argument("--dataset", metavar="FILE", help="dataset whose states are labelled (default: the RUN's own)")
    parser.add_argument("--states", type=int, help="labelled states at most (default 10,000)")
    parser.add_argument("--policy-seed", type=int, metavar="K", help="which of RUN's policies (default: its first)")
    parser.add_argument("-o", "--output", required=True, help="policy.safetensors, with its .json beside it")
    output.add_trust(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run, quiet=False)


def run(arguments: argparse.Namespace) -> int:
    """Write the policy with its task, and say what it was found from."""
    from surefoot.play.task import STATES, check_output, policy_for
    from surefoot.runs.trust import FunctionName, allow, function_of

    path = check_output(arguments.output)
    reward, goal = None, None
    if arguments.reward is not None:
        allow(FunctionName(arguments.reward))
        reward = function_of(arguments.reward, "--reward")
    if arguments.goal is not None:
        try:
            goal = [float(part) for part in arguments.goal.split(",")]
        except ValueError as error:
            raise ConfigError(f"--goal {arguments.goal}: must be numbers with commas between them") from error
    found = policy_for(
        arguments.folder,
        reward=reward,
        goal=goal,
        dataset=arguments.dataset,
        states=STATES if arguments.states is None else arguments.states,
        seed=arguments.policy_seed,
        trust=arguments.trust,
    )
    found.policy.save(path)
    if arguments.json:
        output.print_json({**found.facts, "task": found.task.tolist(), "policy": str(path)})
        return 0
    facts = found.facts
    if goal is not None:
        what = f"the goal {arguments.goal}"
    else:
        name = facts["reward"] if arguments.reward is None else arguments.reward
        what = (
            f"{name}, from {facts['states']:,} states of {facts['dataset']}, mean reward {facts['mean_reward']:.4g}, "
            f"{100 * facts['rewarded']:.3g} % of them with one that is not 0"
        )
    output.say(f"policy: {output.short(path)} and {output.short(path.with_suffix('.json'))}\ntask: {what}")
    return 0
