"""What a run computes on and in which precision: TF32 where it was asked for, and on a GPU alone."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
import torch

from surefoot.cli.main import main
from surefoot.core.base.errors import ConfigError
from surefoot.runs.machine import check_tf32, use_tf32

GPU, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture
def precision() -> Iterator[None]:
    matrices, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(matrices)
    torch.backends.cudnn.allow_tf32 = convolutions


@pytest.mark.usefixtures("precision")
def test_products_on_a_gpu_are_float32s_unless_tf32_is_asked_for() -> None:
    for wanted, name in ((True, "high"), (False, "highest")):
        use_tf32(wanted, GPU)
        assert torch.get_float32_matmul_precision() == name
        assert torch.backends.cudnn.allow_tf32 is wanted


@pytest.mark.usefixtures("precision")
def test_a_run_on_a_cpu_changes_no_precision_and_refuses_tf32() -> None:
    torch.set_float32_matmul_precision("medium")
    use_tf32(False, CPU)
    assert torch.get_float32_matmul_precision() == "medium"
    with pytest.raises(ConfigError, match="this run computes on a CPU"):
        check_tf32(True, CPU)


def test_the_command_line_refuses_tf32_on_a_cpu(
    tmp_path: pathlib.Path, dataset_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    options = ["algo=bc", f"dataset={dataset_path}", "steps=10", "device=cpu", "tf32=true", f"out={out}"]
    assert main(["train", "-q", *options]) == 2
    assert "tf32=true is of matrix products on a GPU" in capsys.readouterr().err
    assert not out.exists()
