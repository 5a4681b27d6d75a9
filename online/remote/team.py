"""A team of collectors, which act in processes elsewhere with copies of an agent, and the learner that leads them.

Collectors are given what to do by orders: which block, and the weights to act by. Orders and answers are bytes (one
safetensors file each), whatever carries them. A collector's state, its environments and sums, comes with every answer;
so one that is lost is restarted where it stood, and what it had not answered is ordered again: nothing but time is
lost, unless the environments can't give their state.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from surefoot.core.base import errors
from surefoot.core.base.errors import EnvironmentMismatchError, SimulatorError, SurefootError
from surefoot.core.base.spec import mapped
from surefoot.core.engine.learner import Learner
from surefoot.envs.acting import under
from surefoot.envs.interface import VectorEnvironment

Tensors = dict[str, Tensor]
STATE, AGENT, ROWS, MOMENTS = "state/", "agent/", "rows/", "moments/"
"""What names of tensors begin with: a collector's state, weights, what was met, statistics of observations."""
NOT_FOR_ACTING = ("critic", "value", "target_")
"""What names of networks begin with that no acting needs, unless one is the actor, as DQN's critic is."""
DEATHS_IN_A_ROW = 5
"""Times that a collector may be lost without an answer in between."""


class LostError(Exception):
    """The process of a collector has ended, or can't be reached."""


class Connection(Protocol):
    """A way to one collector. Answers come in the order of the messages."""

    def send(self, message: bytes) -> None:
        """Send a message; raises LostError."""
        ...

    def receive(self, patience: float | None) -> bytes:
        """The next answer; raises LostError, and TimeoutError after `patience` seconds."""
        ...

    def close(self) -> None:
        """End the collector."""
        ...


def packed(meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Words and tensors as one message."""
    ready = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return save(ready, {"meta": json.dumps(dict(meta))})


def unpacked(message: bytes) -> tuple[dict[str, Any], Tensors]:
    """What `packed` packed."""
    header = json.loads(message[8 : 8 + int.from_bytes(message[:8], "little")])
    return json.loads(header["__metadata__"]["meta"]), load(message)


def weights(learner: Learner) -> Tensors:
    """Parameters and buffers of a lone agent that acting may need, by full names behind "agent/"."""
    tensors = learner.agent.state_dict(keep_vars=True)
    acting = {id(value) for value in learner.agent.actor.state_dict(keep_vars=True).values()}
    needed = {name for name, value in tensors.items() if id(value) in acting}
    own = learner.agents_parameters(0).items()
    return {f"{AGENT}{n}": value for n, value in own if n in needed or not n.startswith(NOT_FOR_ACTING)}


def take_weights(learner: Learner, tensors: Mapping[str, Tensor]) -> None:
    """Take what `weights` gave into an agent of the same kind."""
    own = learner.agents_parameters(0)
    with torch.no_grad():
        for name, value in under(tensors, AGENT).items():
            own[name].copy_(value)


class Team:
    """W collectors of one learner.

    `staleness` orders are under way while the learner learns: 0, and all wait for its new weights. The policy that took
    a block is therefore exactly so many versions old (fewer in the first blocks), never older.
    """

    def __init__(
        self,
        connect: Callable[[int], Connection],
        begin: Callable[[int], dict[str, Any]],
        workers: int,
        staleness: int = 0,
        patience: float = 0.0,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Begin the collectors.

        Args:
            connect: makes the connection to collector w, from 0 on; called again where it is lost.
            begin: what it is given first.
            workers: W.
            staleness: at least 0.
            patience: seconds that an answer may take; 0: for ever.
            notify: called with a sentence where a collector is lost.
        """
        self.connect, self.begin, self.workers, self.staleness = connect, begin, workers, staleness
        self.patience = patience or None
        self.notify = notify
        self.states: list[Tensors] = [{} for _ in range(workers)]
        """Of each collector after its last answer; empty before the first."""
        self.ordered = 0
        """The block that is ordered next."""
        self.versions: collections.Counter[int] = collections.Counter()
        """How old the policy was that took a block -> blocks."""
        self.restarts, self.sent, self.received, self.messages = 0, 0, 0, 0
        self._open: list[collections.deque[bytes]] = [collections.deque() for _ in range(workers)]
        self._deaths = [0] * workers
        self._connections: list[Connection | None] = [None] * workers
        self._dated: dict[int, int] = {}

    def collect(self, number: int, order: Callable[[], tuple[dict[str, Any], Tensors]]) -> list[tuple[Any, Tensors]]:
        """The answers of all collectors to order `number`, after the orders that may be given by now are given.

        Args:
            number: one above that of the last call.
            order: makes words and tensors of the orders that are given now, those up to `number + staleness`.

        Raises:
            SurefootError: a collector met an error of the user's, as such; or it is lost again and again.
        """
        made = None
        while self.ordered <= number + self.staleness:
            made = order() if made is None else made
            message = packed({"do": "collect", **made[0], "number": self.ordered}, made[1])
            self._dated[self.ordered] = number
            for worker in range(self.workers):
                self._open[worker].append(message)
                self._send(worker, message)
            self.ordered += 1
        self.versions[number - self._dated.pop(number)] += 1
        return [self._answer(worker, number) for worker in range(self.workers)]

    def close(self) -> None:
        """End all collectors."""
        for worker, connection in enumerate(self._connections):
            if connection is not None:
                connection.close()
            self._connections[worker] = None

    def facts(self) -> dict[str, Any]:
        """What a run says of its collectors."""
        return {
            "workers": self.workers,
            "restarts": self.restarts,
            "staleness": {str(age): count for age, count in sorted(self.versions.items())},
            "messages": self.messages,
            "bytes_sent": self.sent,
            "bytes_received": self.received,
        }

    def _send(self, worker: int, message: bytes) -> None:
        connection = self._connections[worker]
        try:
            if connection is None:
                self._begin(worker)  # which sends what is open, this message included
                return
            connection.send(message)
        except LostError as error:
            self._lose(worker, error)
        self.sent += len(message)
        self.messages += 1

    def _begin(self, worker: int) -> None:
        connection = self._connections[worker] = self.connect(worker)
        connection.send(packed({"do": "begin", **self.begin(worker)}, {}))
        number = self.ordered - len(self._open[worker])
        if self.states[worker]:
            connection.send(
                packed({"do": "restore", "number": number}, {f"{STATE}{n}": v for n, v in self.states[worker].items()})
            )
        for message in self._open[worker]:
            connection.send(message)
            self.sent += len(message)
            self.messages += 1

    def _lose(self, worker: int, error: LostError) -> None:
        """Begin a lost collector again, where it stood after its last answer."""
        while True:
            if (connection := self._connections[worker]) is not None:
                connection.close()
            self._deaths[worker] += 1
            if self._deaths[worker] > DEATHS_IN_A_ROW:
                raise SurefootError(
                    f"collector {worker} was lost {self._deaths[worker]} times in a row without an answer ({error}); "
                    "see the seed's log"
                ) from error
            self.restarts += 1
            self.notify(f"collector {worker} was lost ({error}): restarted where it stood")
            try:
                self._begin(worker)
                return
            except LostError as another:
                error = another

    def _answer(self, worker: int, number: int) -> tuple[Any, Tensors]:
        while True:
            connection = self._connections[worker]
            assert connection is not None
            try:
                message = connection.receive(self.patience)
            except LostError as error:
                self._lose(worker, error)
                continue
            except TimeoutError as error:
                raise SimulatorError(
                    f"collector {worker} gave no answer for {self.patience:g} seconds (patience=): its environment may "
                    "hang"
                ) from error
            self.received += len(message)
            self.messages += 1
            meta, tensors = unpacked(message)
            if "error" in meta:
                raise _as_error(meta, worker)
            if meta["number"] != number:
                raise RuntimeError(f"collector {worker} answered order {meta['number']} and not {number}")
            for sentence in meta["told"]:
                self.notify(f"collector {worker}: {sentence}")
            self._open[worker].popleft()
            self._deaths[worker] = 0
            self.states[worker] = under(tensors, STATE)
            return meta, tensors

    # -- what is saved -----------------------------------------------------------------------------------

    def state(self) -> np.ndarray[Any, Any]:
        """(B,) uint8: the states of all collectors, and which block comes next."""
        tensors = {f"{worker}/{n}": v for worker, state in enumerate(self.states) for n, v in state.items()}
        number = self.ordered - max(len(waiting) for waiting in self._open)
        return np.frombuffer(packed({"workers": self.workers, "number": number}, tensors), np.uint8).copy()

    def restore(self, state: np.ndarray[Any, Any]) -> None:
        """Continue from what `state` gave; orders that were under way are given again, by the weights of now.

        Raises:
            EnvironmentMismatchError: it was of another number of collectors.
        """
        meta, tensors = unpacked(state.astype(np.uint8).tobytes())
        if meta["workers"] != self.workers:
            raise EnvironmentMismatchError(f"the checkpoint is of {meta['workers']} collectors, not of {self.workers}")
        self.close()
        self.states = [under(tensors, f"{worker}/") for worker in range(self.workers)]
        self.ordered = meta["number"]
        self._dated.clear()
        for waiting in self._open:
            waiting.clear()


def _as_error(meta: Mapping[str, Any], worker: int) -> Exception:
    kind = getattr(errors, str(meta["error"]), None)
    if isinstance(kind, type) and issubclass(kind, SurefootError):
        error = SurefootError.__new__(kind)
        error.args = (f"collector {worker}: {meta['text']}",)
        return error
    return RuntimeError(f"collector {worker}: {meta['text']}; the traceback is in the seed's log")


class Elsewhere(VectorEnvironment):
    """Environments that a team acts in: their spaces and number, and as their state that of the collectors."""

    def __init__(self, like: Any, num_envs: int, team: Team) -> None:
        """Stand for `num_envs` rows of an environment.

        Args:
            like: an environment of the same spaces, which is not kept.
            num_envs: of all collectors together.
            team: which acts.
        """
        super().__init__(num_envs, like.single_observation_space, like.single_action_space)
        self.team, self.spec = team, getattr(like, "spec", None)
        self.inserts_rows = bool(getattr(like, "inserts_rows", False))
        if hasattr(like, "agents_team"):
            self.agents_team = like.agents_team

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Zeros: what is observed is observed elsewhere."""
        rows = self.num_envs
        return mapped(
            lambda space: np.zeros((rows, *(space.shape or ())), space.dtype), self.single_observation_space
        ), {}

    def step(self, actions: Any) -> Any:
        """No one acts here."""
        raise TypeError("a team's environments are stepped by its collectors")

    def get_state(self) -> dict[str, Any]:
        """The team's state."""
        return {"collectors": self.team.state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from it."""
        self.team.restore(state["collectors"])
