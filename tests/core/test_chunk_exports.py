"""Flow, diffusion and one-step policies of chunks as ONNX files: the same actions, also where only onnxruntime is."""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.diffusion import DiffusionActor, Schedule
from surefoot.core.actors.flow_actor import FlowActor, OneStepActor
from surefoot.core.actors.heads import CategoricalActor, DeterministicActor, GaussianActor, UnboundedGaussianActor
from surefoot.core.actors.memory import DRAWS
from surefoot.core.actors.memory_actors import ChunkActor, GRUActor
from surefoot.core.base.spec import Array
from surefoot.core.nn.encoders import Encoder
from surefoot.core.nn.noise_networks import PlainNoise
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.nn.velocity import PlainVelocity
from surefoot.core.policy.chunk_playing import played
from surefoot.core.policy.policy import Policy

onnxruntime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
pytest.importorskip("onnxscript", reason="the onnx extra is not installed")

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHUNK, OBSERVED, ACTIONS = 4, 3, 2
SIZE = CHUNK * ACTIONS
STEPS = 11
SMALL = (32, 32)

INNER: dict[str, Callable[[], Actor]] = {
    "flow in 1 step": lambda: FlowActor(PlainVelocity(OBSERVED, SIZE, SMALL), SIZE, 1),
    "flow in 4 steps": lambda: FlowActor(PlainVelocity(OBSERVED, SIZE, SMALL), SIZE, 4),
    "diffusion in 5 steps": lambda: DiffusionActor(
        PlainNoise(OBSERVED, SIZE, SMALL), Schedule.vp(20), SIZE, implicit=5
    ),
    "one-step student": lambda: OneStepActor(OBSERVED, SIZE, SMALL),
}


def policy(kind: str) -> Policy:
    torch.manual_seed(2)
    head = ChunkActor(INNER[kind](), CHUNK, ACTIONS)
    normalizer = Normalizer(OBSERVED)
    normalizer.mean.copy_(torch.tensor([1.0, -20.0, 300.0]))
    normalizer.scale.copy_(torch.tensor([0.5, 3.0, 100.0]))
    return Policy.of(head, normalizer, torch.tensor([-2.0, -10.0]), torch.tensor([2.0, 10.0]))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Policy], pathlib.Path]:
    """A policy of each kind and one that fades, each as a file of its name, and their folder."""
    folder, made = tmp_path_factory.mktemp("files"), {kind: policy(kind) for kind in INNER}
    torch.manual_seed(4)
    plain = ChunkActor(DeterministicActor(OBSERVED, SIZE, SMALL), CHUNK, ACTIONS)
    trained = Policy.of(plain, Normalizer(OBSERVED), torch.tensor([-2.0, -10.0]), torch.tensor([2.0, 10.0]))
    made["blend"] = played(trained, "blend", execute=2, fade_ticks=2)
    for name, one in made.items():
        one.export(folder / f"{name}.onnx")
    return made, folder


def episodes(made: Policy, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Observations, noise and ends of STEPS steps, and the actions of the policy."""
    draw = torch.Generator().manual_seed(3)
    observations = torch.randn(STEPS, rows, OBSERVED, generator=draw) * torch.tensor([0.5, 3.0, 100.0])
    observations = observations + torch.tensor([1.0, -20.0, 300.0])
    noise = torch.randn(STEPS, rows, made.noise_dim, generator=draw)
    ended = torch.zeros(STEPS, rows, dtype=torch.bool)
    ended[5, 0] = True
    memory, actions = made.begin(rows), []
    for time in range(STEPS):
        chosen, memory = made.act(observations[time], memory, noise[time])
        memory = made.observe_outcome(memory, torch.zeros(rows), torch.zeros(rows), ended[time])
        actions.append(chosen)
    return observations, noise, ended, torch.stack(actions)


@pytest.mark.parametrize("kind", INNER)
def test_a_file_gives_the_same_actions_for_the_same_noise_with_all_steps_unrolled(
    kind: str, files: tuple[dict[str, Policy], pathlib.Path]
) -> None:
    made = files[0][kind]
    session = onnxruntime.InferenceSession(files[1] / f"{kind}.onnx", providers=["CPUExecutionProvider"])
    assert {put.name for put in session.get_inputs()} >= {"observations", "noise", "ended", "memory.queue"}
    for rows in (1, 5):
        observations, noise, ended, actions = episodes(made, rows)
        names = [name for name in made.begin(rows) if name != DRAWS]
        memory = {f"memory.{name}": np.zeros_like(made.begin(rows)[name].numpy()) for name in names}
        begins = np.ones(rows, bool)
        for time in range(STEPS):
            given: dict[str, Any] = {"observations": observations[time].numpy(), "noise": noise[time].numpy()}
            found, *following = session.run(None, {**given, "ended": begins, **memory})
            memory, begins = dict(zip(memory, following, strict=True)), ended[time].numpy()
            np.testing.assert_allclose(found, actions[time].numpy(), rtol=0, atol=1e-5)
    assert (actions[1:] - actions[:-1]).abs().max() > 0.05
    first = made.act(observations[0], made.begin(5), noise[0])[0]
    assert (first - made.act(observations[0], made.begin(5), noise[1])[0]).abs().max() > 1e-3


APART = """
import importlib.util, sys
import numpy
from run_onnx import OnnxPolicy
for name in ("surefoot", "torch", "gymnasium"):
    assert sys.modules.get(name) is None and (name in sys.modules or importlib.util.find_spec(name) is None)
for name in {names!r}:
    given, found = numpy.load(name + ".npz"), []
    policy = OnnxPolicy(name + ".onnx")
    for observation, noise, ended in zip(given["observations"], given["noise"], given["ended"]):
        found.append(policy.select_action(observation, noise if noise.size else None))
        if ended:
            policy.reset()
    numpy.save(name + ".npy", numpy.stack(found))
"""


def check_apart(files: tuple[dict[str, Policy], pathlib.Path], options: list[str], before: str) -> None:
    """Run each file in another process by the example's class alone, and compare."""
    made, folder = files
    shutil.copy(ROOT / "examples" / "run_onnx.py", folder)
    wanted = {}
    for name, one in made.items():
        observations, noise, ended, wanted[name] = episodes(one, 1)
        parts = {"observations": observations, "noise": noise, "ended": ended}
        np.savez(folder / f"{name}.npz", **{key: value[:, 0].numpy() for key, value in parts.items()})
        (folder / f"{name}.npy").unlink(missing_ok=True)
    code = before + APART.format(names=list(made))
    subprocess.run([sys.executable, *options, "-c", code], check=True, timeout=120, cwd=folder)
    for name in made:
        np.testing.assert_allclose(np.load(folder / f"{name}.npy"), wanted[name][:, 0].numpy(), rtol=0, atol=1e-5)


def test_the_examples_class_runs_every_file_without_importing_surefoot_or_torch(
    files: tuple[dict[str, Policy], pathlib.Path],
) -> None:
    hidden = "import sys; sys.modules['torch'] = sys.modules['surefoot'] = sys.modules['gymnasium'] = None\n"
    check_apart(files, [], hidden)


def requirements(*names: str) -> set[importlib.metadata.Distribution]:
    """Installed packages and all that they need."""
    found, left = {}, list(names)
    while left:
        name = re.split(r"[^\w.-]", left.pop())[0]
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            left += [line for line in found[name].requires or () if "extra ==" not in line]
    return set(found.values())


def test_files_run_where_only_numpy_and_onnxruntime_are(
    files: tuple[dict[str, Policy], pathlib.Path], tmp_path: pathlib.Path
) -> None:
    for package in requirements("numpy", "onnxruntime"):
        for part in {file.parts[0] for file in package.files or ()} - {".."}:
            (tmp_path / part).symlink_to(package.locate_file(part))
    check_apart(files, ["-I", "-S"], f"import sys; sys.path[:0] = [{str(files[1])!r}, {str(tmp_path)!r}]\n")


def example_class() -> Any:
    """`OnnxPolicy` of the example."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        from run_onnx import OnnxPolicy
    finally:
        sys.path.remove(str(ROOT / "examples"))
    return OnnxPolicy


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_the_examples_class_refuses_what_is_not_finite_and_remembers_none_of_it(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    heads = {"gru": GRUActor(UnboundedGaussianActor(4, 2, (8,)), 3, 4), "choice": CategoricalActor(3, 4, (8,))}
    for name, head in heads.items():
        size = 4 if head.discrete else 2
        made = Policy.of(head, Normalizer(3), torch.full((size,), float(head.discrete) - 1), torch.ones(size))
        made.export(tmp_path / f"{name}.onnx")
        policy, untouched = (example_class()(str(tmp_path / f"{name}.onnx")) for _ in range(2))
        seen = np.array([0.3, -0.2, 0.1], np.float32)
        for step in range(4):
            for index, value in enumerate((np.nan, -np.inf, 1e300)):
                bad = seen.astype(np.float64)
                bad[index] = value
                words = rf"observations\[{index}\] is .*check that sensor. The policy was not run"
                with pytest.raises(ValueError, match=words):
                    policy.select_action(bad)
            np.testing.assert_array_equal(policy.select_action(seen), untouched.select_action(seen), err_msg=str(step))
            assert all(np.isfinite(array).all() for array in policy.memory.values())
    gru = example_class()(str(tmp_path / "gru.onnx"))
    first = gru.select_action(seen)
    kept = {name: array.copy() for name, array in gru.memory.items()}
    run, gru.session = gru.session.run, types.SimpleNamespace()
    gru.session.run = lambda *given: [one * np.float32(np.nan) for one in run(*given)]  # sums that overflow
    with pytest.raises(ValueError, match="the action is not finite"):
        gru.select_action(seen)
    assert np.isfinite(first).all()
    for name, array in kept.items():
        np.testing.assert_array_equal(gru.memory[name], array)


def test_the_examples_class_reads_images_and_several_arrays_and_refuses_others_by_name(tmp_path: pathlib.Path) -> None:
    OnnxPolicy = example_class()
    torch.manual_seed(0)
    encoder = Encoder({"image": Array((1, 20, 20), "uint8"), "speed": Array((2,))}, "small")
    made = Policy.of(GaussianActor(encoder.width, 2, (8,)), Normalizer(2), -torch.ones(2), torch.ones(2), encoder)
    made.export(tmp_path / "p.onnx")
    image = np.random.default_rng(0).integers(0, 256, (1, 20, 20), np.uint8)
    seen, policy = {"image": image, "speed": np.ones(2, np.float32)}, OnnxPolicy(str(tmp_path / "p.onnx"))
    found = policy.select_action({**seen, "speed": np.ones(2), "more": np.zeros(9)})
    np.testing.assert_allclose(found, made.select_action(seen), atol=1e-5)
    for wrong, words in (
        ({**seen, "image": image[0]}, r"image \(1, 20, 20\) uint8, .*; the observation's image is \(20, 20\) uint8"),
        ({**seen, "image": image / 255}, r"image is \(1, 20, 20\) float64"),
        ({"image": image}, "observation's speed is not there"),
        (image, "observation's image is not there"),
    ):
        with pytest.raises(ValueError, match=words):
            policy.select_action(wrong)
    del policy.observed["speed"]
    assert (policy.read(image)["image"] == image[None]).all(), "a lone array needs no name"
