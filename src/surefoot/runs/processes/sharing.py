"""Learners of one seed that share its batches: the worker of the seed begins the others, which end with it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence

from surefoot.core.base.children import start_python
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Agent
from surefoot.core.engine.features import move_noise
from surefoot.core.engine.share import Share
from surefoot.online.base.agents import OffPolicyAgent
from surefoot.runs.plan import Plan
from surefoot.streaming.agent import StreamingAgent

OTHER = "SUREFOOT_LEARNER"
"""Environment variable of the learners that a worker has started."""
_others: list[subprocess.Popen[bytes]] = []


def check_learners(plan: Plan, agent: Agent) -> None:
    """Refuse what the learners of a plan can't share.

    Raises:
        ConfigError: says what.
    """
    if isinstance(agent, OffPolicyAgent | StreamingAgent) or not agent.row_separable:
        raise ConfigError(
            f"learners={plan.learners}: the losses of {agent.name} are not means over the rows of one batch, so that "
            "processes can't share it; those of ppo, iql and bc are"
        )
    if move_noise(agent):
        raise ConfigError(
            f"learners={plan.learners}: processes that share a batch can't shift its images, as {agent.name} does by "
            "default: set algo.shift=0"
        )
    if plan.compiled or plan.mixed_precision or plan.collectors is not None or plan.jacobian_penalty > 0:
        raise ConfigError(
            f"learners={plan.learners}: leave out compiled, mixed_precision, jacobian_penalty and collectors"
        )
    if not agent.requires.online and plan.batch_size % plan.learners:
        raise ConfigError(f"batch_size={plan.batch_size}: can't be shared equally among learners={plan.learners}")


def join(plan: Plan, arguments: Sequence[str]) -> Share:
    """The share of this worker, after the first of them has started the others with its own arguments.

    The others listen to their standard input as it does, which it holds open, so that they end with it.
    """
    if OTHER not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(plan.learners)}
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        for rank in range(1, plan.learners):
            _others.append(
                start_python(
                    "-m",
                    "surefoot.runs.processes.worker",
                    *arguments,
                    stdout=subprocess.DEVNULL,
                    variables={**meet, "RANK": str(rank), "LOCAL_RANK": str(rank), OTHER: "1"},
                )
            )
        os.environ.update({**meet, "RANK": "0", "LOCAL_RANK": "0"})
    import torch

    cuda = plan.device in ("auto", "cuda") and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return Share.join("cuda" if cuda else "cpu")
