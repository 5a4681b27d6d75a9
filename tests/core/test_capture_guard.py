"""The guard catches what a CUDA graph forbids, in an operation alone and in a training step, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from capture_guard import CaptureError, CaptureGuard, check_captured, on_meta
from torch import Tensor
from toy_agents import ADAM, PUSH, Toy, learner, toy

from surefoot.core.base.placed import Placed
from surefoot.core.engine.agent import Adam, Update
from surefoot.core.engine.learner import Learner

X = torch.empty(4, 3, device="meta")
HOST = torch.ones(3)
FORBIDDEN: dict[str, tuple[str, Callable[[], Any]]] = {
    "a number as new_tensor": ("new_tensor makes a tensor of the host", lambda: X * X.new_tensor(3.0)),
    "numbers as a tensor": ("^tensor makes a tensor", lambda: X * torch.tensor([1.0, 2.0, 3.0], device=X.device)),
    "an array as a tensor": ("as_tensor makes a tensor", lambda: torch.as_tensor(np.ones(3), device=X.device)),
    "an array": ("_to_copy is given a tensor of the processor", lambda: torch.from_numpy(np.ones(3)).to(X.device)),
    "places in a list": ("indexed by numbers of the host", lambda: X[[0, 2]]),
    "columns in an array": ("indexed by numbers of the host", lambda: X[:, np.array([0, 2])]),
    "places written to": ("indexed by numbers of the host", lambda: X.clone().__setitem__([0, 2], 1.0)),
    "item": ("_local_scalar_dense: the host waits", lambda: X.sum().item()),
    "float": ("the host waits", lambda: float(X.sum())),
    "a condition": ("the host waits", lambda: 1 if X.sum() > 0 else 0),
    "tolist": ("_to_copy: the host waits", lambda: X.tolist()),
    "cpu": ("_to_copy: the host waits", lambda: X.cpu()),
    "nonzero": ("nonzero: the host waits", lambda: X.nonzero()),
    "unique": ("_unique2: the host waits", lambda: X.unique()),
    "equal": ("equal: the host waits", lambda: torch.equal(X, X)),
    "classes that are counted": ("the host waits", lambda: torch.nn.functional.one_hot(X[0].long())),
    "a mask as index": ("index by a mask", lambda: X[X > 0]),
    "rows repeated by a tensor": ("how long the result is", lambda: X.repeat_interleave(X[:, 0].long(), 0)),
    "a tensor of the processor": ("mul is given a tensor of the processor, of shape \\(3,\\)", lambda: X * HOST),
    "a number of the processor": ("mul is given a tensor of the processor, of shape \\(\\)", lambda: X * HOST[0]),
    "a copy from the processor": ("_to_copy is given a tensor of the processor", lambda: HOST.to(X.device)),
    "a copy of zeros": ("_to_copy is given a tensor of the processor", lambda: torch.zeros(()).to(X.device)),
    "a copy into": ("copy_ is given a tensor of the processor", lambda: X[0].copy_(HOST)),
    "normal numbers": ("randn draws global random numbers", lambda: torch.randn(3, device=X.device)),
    "uniform numbers": ("uniform_ draws global random numbers", lambda: X.clone().uniform_()),
    "dropout": ("draws global random numbers", lambda: torch.nn.functional.dropout(X, 0.5)),
    "an order": ("randperm draws global random numbers", lambda: torch.randperm(4, device=X.device)),
    "solve": ("_linalg_solve_ex: linear algebra", lambda: torch.linalg.solve(X[:3], X[:3])),
    "cholesky": ("linalg_cholesky_ex: linear algebra", lambda: torch.linalg.cholesky(X[:3])),
    "eigenvalues": ("_linalg_eigh: linear algebra", lambda: torch.linalg.eigh(X[:3])),
    "singular values": ("_linalg_svd: linear algebra", lambda: torch.linalg.svd(X)),
}
ALLOWED: dict[str, Callable[[], Any]] = {
    "numbers of python": lambda: torch.where(X > 0, 1.05 * X, 0.0).clamp(-1, 1) ** 2,
    "a tensor that is filled": lambda: torch.maximum(X, X.new_full((), 0.8)),
    "a choice of two numbers": lambda: torch.where(X > 0, 1.0, 2.0),
    "places that are on the device": lambda: X.gather(1, X.argmax(1, keepdim=True)),
    "rows by places on the device": lambda: X[X.argmax(0)],
    "classes that are known": lambda: torch.nn.functional.one_hot(X[0].long(), 5),
    "a number times a mean, over seeds": lambda: torch.func.vmap(lambda x: 2.0 * x.mean() + 1 / x.sum())(X),
    "a range": lambda: X * torch.arange(3, device=X.device),
    "numbers of the processor among themselves": lambda: float(HOST.sum()) * X,
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_a_graph_forbids_is_caught(name: str) -> None:
    words, forbidden = FORBIDDEN[name]
    with pytest.raises(CaptureError, match=words), CaptureGuard():
        forbidden()


@pytest.mark.parametrize("name", ALLOWED)
def test_what_a_graph_allows_is_let_through(name: str) -> None:
    with CaptureGuard() as guard:
        ALLOWED[name]()
    assert guard.count > 0


def test_the_backward_pass_is_watched_too() -> None:
    weight = torch.empty(3, device="meta", requires_grad=True)
    doubled = 1 * weight
    doubled.register_hook(lambda gradient: gradient * HOST)
    with pytest.raises(CaptureError, match="mul is given a tensor of the processor"), CaptureGuard():
        torch.autograd.grad(doubled.sum(), weight)


def test_nothing_is_watched_after_an_error() -> None:
    with pytest.raises(CaptureError), CaptureGuard():
        X.new_tensor(3.0)
    assert X.new_tensor(3.0).device == X.device


# ---- training steps ----


def trained(
    loss: Callable[[Any, Any, Any], Tensor], optimizer: Adam = ADAM, **update: Any
) -> tuple[Learner, list[Toy]]:
    """Two toys, stacked, whose one loss is `loss(agent, batch, noise)`; and one that is due later."""

    def given_loss(self: Toy, batch: Any, noise: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return loss(self, batch, noise), {}

    def plan(agent: Toy) -> list[Update]:
        first = Update(given_loss.__get__(agent), ("a",), optimizer, **update)
        return [first, Update(agent.b_loss, ("b",), ADAM, after=1000)]

    agents = [toy(plan)]
    agents.append(type(agents[0])(agents[0].spec))
    return learner(agents, torch.ones(8), (0, 1), dtype=torch.float32), agents


def pull(agent: Toy, batch: Any, noise: Any) -> Tensor:
    return (agent.a.x - batch["y"] + noise["push"]).square().mean()


def test_an_honest_step_is_let_through_with_the_updates_that_are_due_later() -> None:
    assert check_captured(*trained(pull, noise=PUSH)) == 2
    assert (
        check_captured(*trained(pull, noise=PUSH, optimizer=Adam(1e-3, max_gradient_norm=1.0, weight_decay=0.1))) == 2
    )


def test_numbers_of_the_host_in_a_loss_are_caught() -> None:
    with pytest.raises(CaptureError, match="new_tensor"):
        check_captured(*trained(lambda agent, batch, noise: (agent.a.x - batch["y"].new_tensor(3.0)).square().mean()))


@pytest.mark.parametrize("held", [torch.tensor(3.0), torch.ones(4)], ids=["number", "row"])
def test_a_tensor_that_an_agent_holds_beside_its_buffers_is_caught(held: Tensor) -> None:
    def loss(agent: Toy, batch: Any, noise: Any) -> Tensor:
        return (agent.a.x - batch["y"] * agent.held).square().mean()

    learner, agents = trained(loss)
    for agent in agents:
        agent.held = held
    with pytest.raises(CaptureError, match="given a tensor of the processor"):
        check_captured(learner, agents)


def test_rows_that_are_gathered_by_a_mask_are_caught() -> None:
    made, agents = trained(pull, noise=PUSH)
    gather = made.sources["batch"].gather
    made.sources["batch"].gather = lambda rows, out=None: gather(rows[rows >= 0].view(rows.shape))  # type: ignore[method-assign]
    with pytest.raises(CaptureError, match="by a mask"):
        check_captured(made, agents)


def test_a_rate_that_a_graph_would_repeat_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    made, agents = trained(pull, noise=PUSH)
    shadow = on_meta(made, agents)
    shadow.optimizers[0]._turns[0].rates = [None]
    monkeypatch.setattr("capture_guard.on_meta", lambda *_: shadow)
    with pytest.raises(CaptureError, match=r"given the learning rate as 0\.1"):
        check_captured(made, agents)


def test_the_guard_leaves_the_learner_as_it_was() -> None:
    made, agents = trained(pull, noise=PUSH)
    before = [network.value.clone() for network in made.networks.values()]
    check_captured(made, agents)
    for value, network in zip(before, made.networks.values(), strict=True):
        assert torch.equal(network.value, value)
    assert torch.equal(made.sources["batch"].gather(torch.arange(8))["y"], torch.ones(8))
    made.run(2)


# ---- constants ----


def test_a_constant_is_copied_to_a_device_once() -> None:
    place = Placed(torch.tensor([0.1, 0.2], dtype=torch.float64))
    first = place(X)
    assert (first.device, first.dtype) == (X.device, torch.float32)
    with CaptureGuard():
        assert place(X) is first
    rows = torch.func.vmap(lambda row: row * place(row))(torch.ones(3, 2))
    assert torch.equal(rows, torch.tensor([[0.1, 0.2]] * 3))
    assert torch.equal(place(torch.ones(())), torch.tensor([0.1, 0.2]))
