"""Our policy behind LeRobot's interface, against a stub of LeRobot: the chunks that it predicts."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.actors.memory_actors import ChunkActor, HistoryActor
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.nn.velocity import PlainVelocity
from surefoot.core.policy.policy import Policy

NAME = "surefoot.interop.lerobot_policy"
BATCH = {"observation.state": torch.linspace(-1, 1, 12).reshape(3, 4)}


@dataclasses.dataclass
class StubConfig:
    device: str = "cpu"
    input_features: Any = None
    output_features: Any = None

    @classmethod
    def register_subclass(cls, name: str) -> Callable[[type], type]:
        return lambda made: made


class StubPolicy(torch.nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config


@pytest.fixture
def lerobot(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Our module, imported with what it takes of LeRobot."""
    steps = ("AddBatchDimension", "Device", "RenameObservations")
    processors = ["PolicyProcessorPipeline", *(f"{step}ProcessorStep" for step in steps)]
    keys = {"ACTION": "action", "OBS_ENV_STATE": "observation.environment_state", "OBS_STATE": "observation.state"}
    keys |= {"OBS_IMAGE": "observation.image", "OBS_IMAGES": "observation.images"}
    keys |= {f"POLICY_{name}_DEFAULT_NAME": name for name in ("POSTPROCESSOR", "PREPROCESSOR")}
    stubs: dict[str, types.ModuleType] = {}
    kinds = types.SimpleNamespace(STATE=1, VISUAL=2, ACTION=3)
    for name, held in {
        "configs.policies": {"PreTrainedConfig": StubConfig},
        "configs.types": {"FeatureType": kinds, "PolicyFeature": lambda *parts: parts},
        "optim.optimizers": {"AdamConfig": object},
        "policies.pretrained": {"PreTrainedPolicy": StubPolicy},
        "processor": dict.fromkeys(processors, object),
        "processor.converters": dict.fromkeys(("policy_action_to_transition", "transition_to_policy_action")),
        "utils.constants": keys,
    }.items():
        parts = ["lerobot", *name.split(".")]
        for k in range(1, len(parts) + 1):
            path = ".".join(parts[:k])
            stubs.setdefault(path, types.ModuleType(path))
        vars(stubs[path]).update(held)
    for path, stub in stubs.items():
        monkeypatch.setitem(sys.modules, path, stub)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)


def flow(width: int, count: int) -> FlowActor:
    return FlowActor(PlainVelocity(width, count, (8,)), count, 4)


def made(lerobot: Any, actor: Actor) -> Any:
    low, high = torch.tensor([-2.0, -1.4]), torch.tensor([-0.8, 4.3])
    return lerobot.SurefootPolicy.of(Policy.of(actor, Normalizer(4), low, high))


def test_chunks_of_a_flow_are_drawn_and_differ_from_call_to_call(lerobot: Any) -> None:
    torch.manual_seed(0)
    tested = made(lerobot, ChunkActor(flow(4, 12), 6, 2))
    first, second = (tested.predict_action_chunk(BATCH) for _ in range(2))
    assert first.shape == (3, 6, 2)
    assert (first - second).abs().max() > 1e-3
    given = torch.zeros(3, tested.policy.noise_dim)
    assert torch.equal(*(tested.predict_action_chunk(BATCH, noise=given) for _ in range(2)))
    assert tested.predict_action_chunk({"observation.state": torch.zeros(1, 4)}).shape == (1, 6, 2)
    tested.reset()
    assert torch.equal(tested.predict_action_chunk(BATCH), first)
    assert torch.equal(tested.select_action(BATCH), first[:, 0])


@pytest.mark.parametrize(("kind", "steps", "draws"), [("chunk", 6, False), ("flow", 1, True), ("history", 1, False)])
def test_other_policies_predict_as_they_act(kind: str, steps: int, draws: bool, lerobot: Any) -> None:
    torch.manual_seed(0)
    actor = {
        "chunk": lambda: ChunkActor(DeterministicActor(4, 12, (8,)), 6, 2),
        "flow": lambda: flow(4, 2),
        "history": lambda: HistoryActor(ChunkActor(DeterministicActor(8, 12, (8,)), 6, 2), 4, 2),
    }[kind]()
    tested = made(lerobot, actor)
    first, second = (tested.predict_action_chunk(BATCH) for _ in range(2))
    assert first.shape == (3, steps, 2)
    assert torch.equal(first, second) != draws
    assert torch.equal(first[:, 0], tested.select_action(BATCH))
