"""Learning from pictures in chunks: what windows gather, histories of frames, the encoder's average, chunks in part."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import Array
from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.averages import power_decay
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.core.policy.policy import Policy
from surefoot.data.decision_source import DecisionSource
from surefoot.data.store import Store
from surefoot.offline.awr_flow import AWRFlow
from surefoot.offline.bc import BC
from surefoot.offline.diffusion_bc import DiffusionBC
from surefoot.offline.flow_bc import FlowBC
from surefoot.offline.fql import FQL
from surefoot.offline.idql import IDQL
from surefoot.offline.ifql import IFQL
from surefoot.offline.qam import QAM
from surefoot.offline.qc import QC
from surefoot.offline.rebrac import ReBRAC
from surefoot.offline.td3_bc import TD3BC

ARRAYS = {
    "front": Array((24, 24, 3), "uint8"),
    "wrist": Array((24, 24, 3), "uint8"),
    "state": Array((2,)),
}
SPEC = Spec(ARRAYS, 2, (-1.0, -1.0), (1.0, 1.0))
EPISODES = np.array([0] * 10 + [1] * 8)
ROWS = len(EPISODES)
SMALL: dict[str, Any] = {"encoder": "small", "encoder_features": 5, "hidden": (8,), "shift": 2}
KINDS: dict[type[Agent], dict[str, Any]] = {
    FlowBC: {"chunk": 4, "flow_steps": 2},
    DiffusionBC: {"chunk": 4},
    FQL: {"chunk": 3, "flow_steps": 2},
    IFQL: {"chunk": 3, "flow_steps": 2},
    IDQL: {"chunk": 3},
    ReBRAC: {"chunk": 2},
    TD3BC: {},
    QC: {"chunk": 3, "flow_steps": 2},
    QAM: {"chunk": 2},
    AWRFlow: {"chunk": 3, "flow_steps": 2},
}


def columns() -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(3)
    found: dict[str, Tensor] = {}
    for name in ("observations", "next_observations"):
        for key, array in ARRAYS.items():
            shape = (ROWS, *array.shape)
            whole = torch.randint(0, 256, shape, dtype=torch.uint8, generator=source)
            found[f"{name}/{key}"] = whole if array.image else torch.randn(shape, generator=source)
    found["actions"] = torch.rand(ROWS, 2, generator=source) * 1.8 - 0.9
    found["rewards"] = torch.randn(ROWS, generator=source)
    return found | {"terminations": torch.zeros(ROWS), "returns_to_go": torch.randn(ROWS, generator=source)}


class Rows:
    """As much of a dataset as windows ask for."""

    episode_ids = EPISODES
    valid = np.ones(ROWS, bool)


def learner(agents: list[Agent], seeds: list[int], **options: Any) -> Learner:
    agent = agents[0]
    store = Store.pack(columns())
    length = 2 * agent.chunk if isinstance(agent, ReBRAC) else agent.chunk
    source = DecisionSource(store, EPISODES, length, agent.chunk, agent.frames)
    return Learner(agents, seeds, source, batch_size=6, planned_steps=10, **options)


def made(kind: type[Agent], seeds: list[int], **options: Any) -> list[Agent]:
    return [kind(SPEC, **{**SMALL, **KINDS.get(kind, {}), **options}).fresh(seed) for seed in seeds]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_trains_its_encoder_from_two_cameras_and_acts(kind: type[Agent], tmp_path: pathlib.Path) -> None:
    trained = learner(made(kind, [0]), [0])
    before = {name: value.clone() for name, value in trained.agents_parameters(0).items()}
    trained.run(2)
    after = trained.agents_parameters(0)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    for part in (
        "encoder.images.front.convolutions.0.weight",
        "encoder.images.wrist.linear.weight",
        "encoder.linear.weight",
    ):
        assert part in changed
    policy = trained.extract(0).policy()
    policy.save(tmp_path / "policy")
    back = Policy.load(tmp_path / "policy")
    seen = {key.split("/")[1]: value[0].numpy() for key, value in columns().items() if key.startswith("observations/")}
    for _ in range(3):
        action = policy.select_action(seen)
        assert np.isfinite(action).all()
        np.testing.assert_array_equal(back.select_action(seen), action)


@pytest.mark.parametrize("kind", [FlowBC, FQL, ReBRAC], ids=lambda kind: kind.name)
def test_seeds_together_learn_what_they_learn_alone(kind: type[Agent]) -> None:
    alone, together = learner(made(kind, [7]), [7]), learner(made(kind, [5, 7]), [5, 7])
    alone.run(2)
    together.run(2)
    for name, value in alone.agents_parameters(0).items():
        torch.testing.assert_close(together.agents_parameters(1)[name], value, atol=2e-4, rtol=1e-3)


def test_windows_gather_each_column_where_it_is_read_and_nowhere_else() -> None:
    rows = {"observations/n": torch.arange(ROWS).to(torch.uint8).view(-1, 1, 1).expand(-1, 8, 8).contiguous()}
    rows["next_observations/n"] = rows["observations/n"] + 100
    rows["actions"] = torch.arange(ROWS).float().unsqueeze(1)
    source = DecisionSource(Store.pack(rows), EPISODES, 4, 4, 3)
    found = source.gather(torch.tensor([0, 1, 3, 8, 11]))
    assert found["observations/n"].shape == (5, 3, 8, 8)
    assert found["observations/n"][..., 0, 0].tolist() == [[0, 0, 0], [0, 0, 1], [1, 2, 3], [6, 7, 8], [10, 10, 11]]
    expected = [[2, 3, 103], [3, 4, 104], [5, 6, 106], [8, 9, 109], [13, 14, 114]]
    assert found["next_observations/n"][..., 0, 0].tolist() == expected
    assert found["actions"][3, :, 0].tolist() == [8, 9, 9, 9]
    assert found["mask"][3].tolist() == [1, 1, 0, 0]


def test_as_many_frames_are_gathered_as_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    whole = Store.gather

    def counting(self: Store, indices: Tensor, out: Any = None) -> Any:
        cameras = sum(name.endswith("/n") for name in self.fields)
        counted.append(cameras * indices.numel())
        return whole(self, indices, out)

    monkeypatch.setattr(Store, "gather", counting)
    rows = {name: torch.zeros(ROWS, 8, 8, dtype=torch.uint8) for name in ("observations/n", "next_observations/n")}
    rows["actions"] = torch.zeros(ROWS, 1)
    batch, frames, chunk = 6, 2, 8
    for following, expected in ((True, batch * (frames + frames)), (False, batch * frames)):
        given = {name: value for name, value in rows.items() if following or not name.startswith("next")}
        counted.clear()
        DecisionSource(Store.pack(given), EPISODES, chunk, chunk, frames).gather(torch.arange(batch))
        assert sum(counted) == expected


@pytest.mark.parametrize("kind", [BC, FlowBC, FQL, TD3BC], ids=lambda kind: kind.name)
def test_a_history_of_frames_encodes_each_by_itself_oldest_first(kind: type[Agent]) -> None:
    (agent,) = made(kind, [0], history=2, shift=0)
    assert agent.encoder is not None
    assert agent.features == 2 * agent.encoder.width
    trained = learner([agent], [0])
    batch = trained.sources["batch"].gather(torch.tensor([0, 4, 10]))
    with torch.no_grad():
        found = trained._annotated(batch, {})
        rows = columns()
        single = agent.encoder({key: rows[f"observations/{key}"] for key in ARRAYS})
    if "observations" not in found:
        assert kind in (BC, FlowBC)
        from surefoot.core.engine.features import features_of, named

        found["observations"] = features_of(agent, named(batch, agent.encoder, "observations"))
    expected = torch.cat([single[[0, 3, 10]], single[[0, 4, 10]]], 1)
    torch.testing.assert_close(found["observations"], expected)
    trained.run(1)


def test_a_policy_with_a_history_repeats_the_first_frame_and_remembers_features(tmp_path: pathlib.Path) -> None:
    (agent,) = made(BC, [0], history=3)
    policy = agent.policy()
    policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy")
    rows = columns()
    frames = [{key: rows[f"observations/{key}"][row] for key in ARRAYS} for row in range(4)]
    assert agent.encoder is not None
    features = [agent.encoder({key: value.unsqueeze(0) for key, value in one.items()}) for one in frames]
    for one in (policy, loaded):
        one.reset()
        for step, places in enumerate(((0, 0, 0), (0, 0, 1), (0, 1, 2), (1, 2, 3))):
            found = one.select_action({key: value.numpy() for key, value in frames[step].items()})
            expected = agent.actor.act(torch.cat([features[place] for place in places], 1))
            np.testing.assert_allclose(found, expected[0].detach().numpy(), atol=1e-6)


def test_histories_of_frames_are_refused_where_nothing_gathers_them() -> None:
    from surefoot.offline.iql import IQL

    with pytest.raises(ConfigError, match=r"iql.history is 2, must be 1"):
        IQL(SPEC, history=2, encoder="small")


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.0), (1, 0.40540), (10, 0.83444), (1000, 0.99438), (215_443, 0.9999)]
)
def test_the_power_schedule_keeps_what_is_published(step: int, expected: float) -> None:
    assert float(power_decay(torch.tensor(float(step)))) == pytest.approx(expected, abs=6e-6)
    assert float(power_decay(torch.tensor(215_000.0))) < 0.9999


@pytest.mark.parametrize("kind", [FlowBC, DiffusionBC], ids=lambda kind: kind.name)
@pytest.mark.parametrize("schedule", ["constant", "power"])
def test_the_average_that_acts_averages_encoder_and_head_together(kind: type[Agent], schedule: str) -> None:
    (agent,) = made(kind, [0], average_schedule=schedule, average_rate=0.25)
    head = str(kind.average_of)
    trained = learner([agent], [0])
    pairs = {head: head.removeprefix("average_"), "average_encoder": "encoder"}
    expected = {name: value.clone() for name, value in trained.agents_parameters(0).items()}
    for step in range(3):
        trained.run(1)
        now = trained.agents_parameters(0)
        kept = 0.75 if schedule == "constant" else float(power_decay(torch.tensor(float(step))))
        for target, source in pairs.items():
            for name in [name for name in expected if name.startswith(f"{target}.")]:
                newer = now[source + name.removeprefix(target)]
                expected[name] = kept * expected[name] + (1 - kept) * newer
                torch.testing.assert_close(now[name], expected[name], atol=1e-6, rtol=1e-5)
    policy = trained.extract(0).policy()
    assert policy.encoder is not None
    for name, value in policy.encoder.state_dict().items():
        assert torch.equal(value, now[f"average_encoder.{name}"])


@pytest.mark.parametrize("schedule", ["constant", "power"])
def test_a_restored_learner_goes_on_as_if_it_had_not_stopped(schedule: str) -> None:
    whole, first = (learner(made(FlowBC, [0], average_schedule=schedule, history=2, crop=0.9), [0]) for _ in range(2))
    whole.run(4)
    first.run(2)
    state = {name: value.clone() for name, value in first.state(0).items()}
    second = learner(made(FlowBC, [0], average_schedule=schedule, history=2, crop=0.9), [0])
    second.restore([state], 2)
    second.run(2)
    for name, value in whole.agents_parameters(0).items():
        assert torch.equal(second.agents_parameters(0)[name], value), name


def test_a_clone_plays_as_much_of_a_chunk_as_it_says_and_keeps_that_in_its_file(tmp_path: pathlib.Path) -> None:
    (agent,) = made(FlowBC, [0], chunk=4, execute=2)
    policy = agent.policy()
    policy.save(tmp_path / "policy")
    loaded: Any = Policy.load(tmp_path / "policy").actor
    assert (loaded.chunk, loaded.execute) == (4, 2)
    with pytest.raises(ConfigError, match=r"flow_bc.execute is 5, must be None, or 1 .. chunk, 4"):
        FlowBC(SPEC, chunk=4, execute=5)


@pytest.mark.parametrize("kind", [FlowBC, DiffusionBC], ids=lambda kind: kind.name)
def test_the_visual_presets_are_as_the_page_says(kind: type[Agent]) -> None:
    wide = {**ARRAYS, "front": Array((84, 84, 3), "uint8"), "wrist": Array((84, 84, 3), "uint8")}
    agent = kind(Spec(wide, 2, (-1.0, -1.0), (1.0, 1.0)), preset="visual_small")
    c = agent.config
    assert (c.encoder, c.chunk, c.execute, c.history, c.normalization) == ("small", 8, 4, 1, "range")
    c = kind.configure(preset="visual")
    assert (c.encoder, c.crop, c.history, c.chunk, c.execute, c.average_schedule) == (
        "resnet18",
        0.9,
        2,
        16,
        8,
        "power",
    )


def test_sources_of_agents_are_windows_of_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        dataset, data = Rows(), Store.pack(columns())

    monkeypatch.setattr("surefoot.data.decision_source.recording_ids", lambda dataset, keys: EPISODES)
    for kind, length in ((FlowBC, 4), (ReBRAC, 4), (FQL, 3)):
        (agent,) = made(kind, [0])
        (source,) = agent.sources(Stores(Held.dataset, Held.data)).values()
        assert isinstance(source, DecisionSource)
        assert (source.length, source.chunk) == (length, agent.chunk)


def test_an_exported_clone_takes_uint8_cameras_by_name_and_acts_alike(tmp_path: pathlib.Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    (agent,) = made(FlowBC, [0], chunk=4, execute=2, crop=0.9)
    policy = agent.policy()
    policy.export(tmp_path / "policy.onnx")
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    kinds = {one.name: one.type for one in session.get_inputs()}
    assert (kinds["front"], kinds["wrist"], kinds["state"]) == ("tensor(uint8)", "tensor(uint8)", "tensor(float)")
    for rows in (1, 5):
        seen = {key: columns()[f"observations/{key}"][:rows] for key in ARRAYS}
        noise = torch.randn(rows, policy.noise_dim)
        memory = {name: value for name, value in policy.begin(rows).items() if name.startswith("queue")}
        given = {key: value.numpy() for key, value in seen.items()} | {"noise": noise.numpy()}
        given |= {f"memory.{name}": value.numpy() for name, value in memory.items()} | {"ended": np.ones(rows, bool)}
        found = session.run(["actions"], given)[0]
        np.testing.assert_allclose(found, policy(seen, noise).numpy(), atol=1e-5)
