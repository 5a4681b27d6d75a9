"""Exported policies give the same actions without surefoot: ONNX in onnxruntime, `torch.export` in torch."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from policies import observations, policy
from small_disk import small_disk

from surefoot.core.actors.attribute_planner import AttributePlanner, networks
from surefoot.core.actors.diffusion import Schedule
from surefoot.core.actors.heads import DeterministicActor, GaussianActor
from surefoot.core.base.errors import ExportError, SurefootError
from surefoot.core.base.spec import Array
from surefoot.core.nn.encoders import Encoder
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy

onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")
pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

CASES = [
    ("deterministic", False),
    ("gaussian", False),
    ("gaussian", True),
    ("tanh_gaussian", False),
    ("tanh_gaussian", True),
    ("state_dependent", True),
]
WITHOUT_SUREFOOT = """
import sys
for name in {absent!r}:
    sys.modules[name] = None
import numpy
given = numpy.load({inputs!r})
{body}
numpy.save({output!r}, found)
"""


def session(path: pathlib.Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def apart(tmp_path: pathlib.Path, rows: torch.Tensor, body: str, absent: tuple[str, ...]) -> np.ndarray:
    """What `body` makes of `given` in another process that can't import `absent`."""
    inputs, output = str(tmp_path / "in.npy"), str(tmp_path / "out.npy")
    np.save(inputs, rows.numpy())
    code = WITHOUT_SUREFOOT.format(absent=absent, inputs=inputs, output=output, body=body)
    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=120, cwd=tmp_path)
    return np.load(output)


@pytest.mark.parametrize(("kind", "sampling"), CASES)
def test_onnx_gives_the_same_actions_for_any_batch_size(kind: str, sampling: bool, tmp_path: pathlib.Path) -> None:
    tested, path = policy(kind), tmp_path / "policy.onnx"
    tested.export(path, sampling=sampling)
    assert os.listdir(tmp_path) == ["policy.onnx"]
    running = session(path)
    assert [i.name for i in running.get_inputs()] == (["observations", "noise"] if sampling else ["observations"])
    assert [o.name for o in running.get_outputs()] == ["actions"]
    for batch in (1, 7, 2):
        rows, noise = observations(batch), torch.randn(batch, 2)
        given = {"observations": rows.numpy(), **({"noise": noise.numpy()} if sampling else {})}
        (found,) = running.run(None, given)
        assert found.shape == (batch, 2)
        assert np.abs(found - tested(rows, noise if sampling else None).numpy()).max() < 1e-5
        if sampling:
            assert np.abs(found - tested(rows).numpy()).max() > 1e-2  # the noise does something


def test_onnx_runs_where_neither_surefoot_nor_torch_is_installed(tmp_path: pathlib.Path) -> None:
    tested, path, rows = policy("gaussian"), tmp_path / "policy.onnx", observations(7)
    tested.export(path)
    body = (
        "import onnxruntime\n"
        f"session = onnxruntime.InferenceSession({str(path)!r}, providers=['CPUExecutionProvider'])\n"
        "found = session.run(None, {'observations': given})[0]"
    )
    found = apart(tmp_path, rows, body, ("surefoot", "torch"))
    assert np.abs(found - tested(rows).numpy()).max() < 1e-5


def test_onnx_uses_standard_operators_and_says_what_it_is(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "policy.onnx"
    policy("tanh_gaussian").export(path, sampling=True)
    model = onnx.load(str(path))
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {""}
    assert not model.functions
    assert {o.domain for o in model.opset_import} <= {"", "ai.onnx"}
    described = {entry.key: entry.value for entry in model.metadata_props}
    assert described["surefoot.actor"] == '"tanh_gaussian"'
    assert described["surefoot.action_high"] == "[2.0, 10.0]"


def test_torch_export_runs_where_surefoot_is_not_installed(tmp_path: pathlib.Path) -> None:
    tested, path, rows = policy("gaussian"), tmp_path / "policy.pt2", observations(7)
    tested.export(path)
    body = (
        "import torch\n"
        f"program = torch.export.load({str(path)!r}).module()\n"
        "found = program(torch.from_numpy(given)).numpy()"
    )
    found = apart(tmp_path, rows, body, ("surefoot",))
    assert np.abs(found - tested(rows).numpy()).max() < 1e-5


@pytest.mark.parametrize(("kind", "sampling"), [("deterministic", False), ("tanh_gaussian", True)])
def test_torch_export_has_a_free_batch_and_takes_noise(kind: str, sampling: bool, tmp_path: pathlib.Path) -> None:
    tested, path = policy(kind), tmp_path / "policy.pt2"
    tested.export(path, sampling=sampling)
    program = torch.export.load(path).module()
    for batch in (1, 7):
        given = (observations(batch), torch.randn(batch, 2))[: 1 + sampling]
        torch.testing.assert_close(program(*given), tested(*given), rtol=0, atol=1e-5)


def test_another_ending_is_refused(tmp_path: pathlib.Path) -> None:
    for name in ("policy.pkl", "policy", "policy.onnx.txt"):
        with pytest.raises(ExportError, match=r"can export to \.onnx, \.pt2 or, without sampling, \.hpp"):
            policy("gaussian").export(tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_a_deterministic_policy_has_no_sampling_form(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ExportError, match="deterministic"):
        policy("deterministic").export(tmp_path / "p.onnx", sampling=True)


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_an_export_that_does_not_fit_on_the_disk_leaves_the_old_file(ending: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / f"policy.{ending}"
    path.write_text("old")
    big: Policy = policy("deterministic", (512, 512))
    with small_disk(500_000), pytest.raises(SurefootError, match=rf"policy\.{ending}"):
        big.export(path)
    assert os.listdir(tmp_path) == [path.name]
    assert path.read_text() == "old"


def test_exporting_leaves_the_policy_as_it_was(tmp_path: pathlib.Path) -> None:
    tested, rows = policy("gaussian"), observations(3)
    before = tested(rows)
    tested.export(tmp_path / "p.onnx")
    assert torch.equal(tested(rows), before)


@pytest.mark.parametrize("ending", [".onnx", ".pt2"])
def test_a_planner_of_attributes_is_exported_with_a_free_batch(ending: str, tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    sizes = {"horizon": 4, "hidden": (8,), "attribute_width": 8, "attribute_members": 1, "candidates": 3,
             "sampler_steps": 1}  # fmt: skip
    bounds = {name: torch.zeros(size) for name, size in (("strength_low", 2), ("strength_high", 2))}
    bounds |= {"state_low": -torch.ones(3), "state_high": torch.ones(3)}
    parts = networks(3, 2, 2, sizes)
    head = AttributePlanner(*parts, Schedule.vp(5), 2, bounds, torch.tensor([0.3, 0.9]), sizes)
    tested = Policy.of(head, Normalizer(3), torch.tensor([-2.0, -1.0]), torch.tensor([2.0, 1.0]))
    tested.export(tmp_path / f"p{ending}")
    for batch in (1, 5):
        rows, noise = torch.randn(batch, 3), torch.randn(batch, tested.noise_dim)
        if ending == ".pt2":
            found = torch.export.load(tmp_path / "p.pt2").module()(rows, noise).numpy()
        else:
            given = {"observations": rows.numpy(), "noise": noise.numpy()}
            (found,) = session(tmp_path / "p.onnx").run(None, given)
        np.testing.assert_allclose(found, tested(rows, noise).numpy(), atol=1e-5)


def test_an_array_with_the_name_of_another_input_is_told_by_name(tmp_path: pathlib.Path) -> None:
    parts = GaussianActor(3, 2, (8,)), Normalizer(3), -torch.ones(2), torch.ones(2)
    tested = Policy.of(*parts, Encoder({"noise": Array((1,)), "angles": Array((2,))}))
    with pytest.raises(ExportError, match=r"array 'noise' has the name of another input .* export to \.pt2"):
        tested.export(tmp_path / "p.onnx", sampling=True)
    assert list(tmp_path.iterdir()) == []
    tested.export(tmp_path / "p.pt2", sampling=True)
    tested.export(tmp_path / "p.onnx")
    seen = {"noise": torch.randn(5, 1), "angles": torch.randn(5, 2)}
    (found,) = session(tmp_path / "p.onnx").run(None, {name: rows.numpy() for name, rows in seen.items()})
    np.testing.assert_allclose(found, tested(seen).numpy(), atol=1e-5)


class Counting(DeterministicActor):
    """A head whose code turns the number of rows into a python number."""

    def act(self, observations: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        return self(observations).reshape(len(observations), 2)


@pytest.mark.parametrize(("ending", "words"), [(".onnx", "exactly 2 rows of observations"), (".pt2", "could not")])
def test_a_batch_size_that_can_not_be_free_is_refused(ending: str, words: str, tmp_path: pathlib.Path) -> None:
    tested = Policy.of(Counting(3, 2, (8,)), Normalizer(3), -torch.ones(2), torch.ones(2))
    with pytest.raises(ExportError, match=words):
        tested.export(tmp_path / f"p{ending}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", [".onnx", ".pt2"])
def test_a_failure_of_torchs_exporter_is_one_sentence_and_leaves_nothing(tmp_path: pathlib.Path, ending: str) -> None:
    broken = policy("deterministic")
    broken.actor.mlp.activation = "nope"
    with pytest.raises(ExportError, match="torch could not export this policy") as caught:
        broken.export(tmp_path / f"policy{ending}")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Unknown(DeterministicActor):
    """A head with an operator that ONNX has not."""

    def act(self, observations: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        return torch.erfinv(self(observations))


def test_an_operator_that_onnx_has_not_is_named(tmp_path: pathlib.Path) -> None:
    tested = Policy.of(Unknown(3, 2, (8,)), Normalizer(3), -torch.ones(2), torch.ones(2))
    with pytest.raises(ExportError, match=r"No ONNX function found for .*erf_?inv") as caught:
        tested.export(tmp_path / "p.onnx")
    assert "\x1b" not in str(caught.value)
