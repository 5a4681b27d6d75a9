"""Weights of a ResNet-18 from files: folded batch norms, names, what is refused, and features that stay."""

from __future__ import annotations

import pathlib
import pickle
import zipfile
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.spec import Array, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.resnet import Folded, ResNetTrunk
from surefoot.core.nn.weights import folded
from surefoot.core.policy.policy import Policy
from surefoot.data.store import Store
from surefoot.offline.bc import BC

SPEC = Spec({"image": Array((72, 72, 3), "uint8"), "state": Array((2,))}, 1, (-1.0,), (1.0,))


def pretrained() -> nn.Module:
    """A trunk with batch norms whose statistics are anything but 0 and 1."""
    torch.manual_seed(0)
    trunk = ResNetTrunk(3, nn.BatchNorm2d)
    for module in trunk.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    return trunk.eval()


def test_a_folded_batch_norm_equals_that_of_evaluation() -> None:
    norm = nn.BatchNorm2d(5).eval()
    norm.running_mean.normal_()  # type: ignore[union-attr]
    norm.running_var.uniform_(0.1, 3)  # type: ignore[union-attr]
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    plain = Folded(5)
    parts = folded(norm.weight, norm.bias, norm.running_mean, norm.running_var)  # type: ignore[arg-type]
    for held, value in zip((plain.scale, plain.shift), parts, strict=True):
        held.copy_(value.detach().view(-1, 1, 1))
    values = torch.randn(3, 5, 4, 6)
    torch.testing.assert_close(plain(values), norm(values), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("name", "prefix"), [("w.safetensors", ""), ("w.pth", ""), ("w.pth", "convnet.")])
def test_an_encoder_starts_from_a_file_and_reads_imagenets_colors(
    name: str, prefix: str, tmp_path: pathlib.Path
) -> None:
    trunk = pretrained()
    tensors = {prefix + key: value.contiguous() for key, value in trunk.state_dict().items()}
    tensors["fc.weight"] = torch.zeros(3, 512)
    (save_file if name.endswith("safetensors") else torch.save)(tensors, tmp_path / name)  # type: ignore[operator]
    agent = BC(SPEC, encoder="resnet18", encoder_weights=str(tmp_path / name), encoder_trains=False, hidden=(8,))
    assert agent.encoder is not None
    assert agent.encoder.description()["pixels"] == "imagenet"
    images = torch.randint(0, 256, (2, 72, 72, 3), dtype=torch.uint8)
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    seen = ((images / 255 - mean) / deviation).permute(0, 3, 1, 2)
    camera: Any = agent.encoder.images["image"]
    torch.testing.assert_close(camera.convolutions(camera.view(images)), trunk(seen), atol=1e-4, rtol=1e-4)
    agent.policy().save(tmp_path / "policy")
    (tmp_path / name).unlink()  # a policy's file holds what it needs
    loaded = Policy.load(tmp_path / "policy")
    given = {"image": images, "state": torch.zeros(2, 2)}
    assert torch.equal(loaded(given), agent.policy()(given))


def test_a_frozen_encoder_stays_and_its_images_are_not_moved(tmp_path: pathlib.Path) -> None:
    torch.save(pretrained().state_dict(), tmp_path / "w.pth")
    options: dict[str, Any] = {"encoder": "resnet18", "encoder_weights": str(tmp_path / "w.pth"), "hidden": (8,)}
    agent = BC(SPEC, encoder_trains=False, crop=0.9, **options)
    rows: dict[str, Tensor] = {
        "observations/image": torch.randint(0, 256, (6, 72, 72, 3), dtype=torch.uint8),
        "observations/state": torch.randn(6, 2),
        "actions": torch.rand(6, 1),
    }
    learner = Learner([agent], [0], Uniform(Store.pack(rows)), batch_size=4, planned_steps=2)
    before = {name: value.clone() for name, value in learner.agents_parameters(0).items()}
    learner.run(2)
    after = learner.agents_parameters(0)
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"actor"}
    assert all("crop" not in update.noise and "shift" not in update.noise for update in learner.updates)


def test_files_that_are_no_resnet_are_refused(tmp_path: pathlib.Path) -> None:
    good = pretrained().state_dict()
    wrong: dict[str, Any] = {
        "has no tensor 'conv1.weight'": {"other": torch.zeros(1)},
        r"layer1.0.conv2.weight is missing": {k: v for k, v in good.items() if k != "layer1.0.conv2.weight"},
        r"bn1.bias is \(3,\), must be \(64,\)": {**good, "bn1.bias": torch.zeros(3)},
        "bn1.bias is not finite": {**good, "bn1.bias": torch.full((64,), torch.nan)},
        "something else than named tensors": [torch.zeros(1)],
    }
    path = tmp_path / "w.pth"
    for words, content in wrong.items():
        torch.save(content, path)
        with pytest.raises(CheckpointError, match=words):
            BC(SPEC, encoder="resnet18", encoder_weights=str(path))
    path.write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="can't be read as weights"):
        BC(SPEC, encoder="resnet18", encoder_weights=str(path))
    with pytest.raises(CheckpointError, match="there is no such file"):
        BC(SPEC, encoder="resnet18", encoder_weights=str(tmp_path / "none.pth"))
    with pytest.raises(ConfigError, match=r"bc.encoder_weights is 'w.pth', and encoder small"):
        BC(SPEC, encoder="small", encoder_weights="w.pth")
    torch.save(good, path)
    stacked = Spec({"image": Array((72, 72, 9), "uint8")}, 1, (-1.0,), (1.0,))
    with pytest.raises(ConfigError, match=r"reads images of 3 channels, and these have 9"):
        BC(stacked, encoder="resnet18", encoder_weights=str(path))


class Executes:
    """What leaves a mark where it is unpickled."""

    def __init__(self, mark: pathlib.Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return pathlib.Path.touch, (self.mark,)


def refused(path: pathlib.Path, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        BC(SPEC, encoder="resnet18", encoder_weights=str(path))


def test_no_object_of_a_file_of_weights_is_executed(tmp_path: pathlib.Path) -> None:
    path, mark = tmp_path / "w.pth", tmp_path / "executed"
    torch.save({"conv1.weight": Executes(mark)}, path)
    refused(path, r"w\.pth: can't be read as weights \(UnpicklingError\)")
    path.write_bytes(pickle.dumps({"conv1.weight": Executes(mark)}, protocol=2))
    refused(path, r"w\.pth: can't be read as weights \(UnpicklingError\)")
    assert not mark.exists()


def test_a_small_file_of_weights_takes_no_large_memory(tmp_path: pathlib.Path) -> None:
    path, plain = tmp_path / "w.pth", tmp_path / "plain.pth"
    torch.save({"conv1.weight": torch.zeros(300 << 20, dtype=torch.uint8)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for member in source.infolist():
            packed.writestr(member.filename, source.read(member))
    plain.unlink()
    refused(path, r"w\.pth: unpacks to \d+ bytes, more than the 268435456")
    good = pretrained().state_dict()
    repeated = torch.zeros(1, dtype=torch.half).as_strided((1 << 24, 1 << 24), (0, 0))  # a petabyte as float32
    for name in ("fc.weight", "bn1.bias"):
        torch.save({**good, name: repeated}, path)
        if name == "fc.weight":  # which is not read
            BC(SPEC, encoder="resnet18", encoder_weights=str(path))
        else:
            refused(path, r"bn1\.bias is \(16777216, 16777216\), must be \(64,\)")


def test_tensors_that_are_no_plain_numbers_are_refused(tmp_path: pathlib.Path) -> None:
    path, good = tmp_path / "w.pth", pretrained().state_dict()
    first = good["conv1.weight"]
    for odd in (first.to_sparse(), first.to("meta"), first.to(torch.complex64), first.to(torch.int32)):
        torch.save({**good, "conv1.weight": odd}, path)
        refused(path, r"w\.pth: conv1\.weight is .*, must be plain floating-point numbers")
    torch.save({1: first}, path)
    refused(path, "something else than named tensors")
