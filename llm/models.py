"""Reading models: transformers is imported here alone."""

from __future__ import annotations

import contextlib
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from surefoot.core.base.errors import CheckpointError, ConfigError, DeviceError, MissingExtraError
from surefoot.core.base.files import read_json
from surefoot.core.base.schema import Plain, Table

TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
"""Files of which a tokenizer has one or more."""
ADAPTERS = "adapter_config.json"
"""What adapters of peft are described by: the model that they belong to, by path or by name."""


def missing_of(error: ImportError, package: str) -> str:
    """The package that an import failed for want of: the one that was asked for, or one that it needs itself."""
    lacking = error.name if isinstance(error, ModuleNotFoundError) else None
    return (lacking or package).partition(".")[0]


def transformers_module() -> Any:
    """transformers, imported here alone.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(missing_of(error, "transformers"), "llm", f"a language model ({error})") from error
    return transformers


def read_model(
    folder: str | pathlib.Path, device: str = "cpu", dtype: str = "float32", seed: int = 0
) -> tuple[Any, Any]:
    """A model and its tokenizer from a folder that transformers or `LMPolicy.save` wrote.

    Only safetensors are read, and no code of the folder's is run. A folder with `config.json` and without weights gives
    a model with random ones, and so does the path of a config.json, whatever lies beside it.

    Args:
        folder: on this machine, or the config.json in one; nothing is fetched.
        device: "cpu", "cuda".
        dtype: of the weights: "float32", "bfloat16".
        seed: of random weights.

    Raises:
        CheckpointError: the folder is missing, damaged or incomplete.
        ConfigError: no such device or type of weights.
        DeviceError: a GPU that is not there.
        MissingExtraError: transformers is not installed.
    """
    _check_device(device)
    number = getattr(torch, dtype, None)
    if not isinstance(number, torch.dtype) or not number.is_floating_point:
        raise ConfigError(f"dtype={dtype!r} is no type of weights: give float32 or bfloat16")
    path = pathlib.Path(folder).expanduser()
    alone = path.name == "config.json" and path.is_file()
    path = path.parent if alone else path
    transformers = transformers_module()
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"{path}: no config.json is there; give the folder of a model, as save_pretrained writes it"
        )
    weights = not alone and any(path.glob("*.safetensors"))
    if not (weights or alone) and any(path.glob("*.bin")):
        raise CheckpointError(f"{path}: weights are a pickle (.bin), which is not read; convert them to safetensors")
    if not alone and (path / ADAPTERS).exists():  # transformers would read the model that it names, wherever that lies
        raise CheckpointError(
            f"{path}: {ADAPTERS} names another model, and weights are read from this folder alone; merge the adapters "
            "into it (merge_and_unload of peft) and save what that gives"
        )
    if not any((path / name).is_file() for name in TOKENIZERS):  # transformers would make up an empty one
        raise CheckpointError(f"{path}: has no tokenizer ({TOKENIZERS[0]}); save it beside the model")
    for index in () if alone else sorted(path.glob("*.safetensors.index.json")):
        _check_parts(index)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            config = transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
            kind = transformers.AutoModelForCausalLM
            if weights:
                model, about = kind.from_pretrained(
                    path,
                    config=config,
                    dtype=number,
                    local_files_only=True,
                    trust_remote_code=False,
                    use_safetensors=True,
                    output_loading_info=True,
                )
                if about["missing_keys"] or about["mismatched_keys"]:
                    name = sorted(map(str, [*about["missing_keys"], *about["mismatched_keys"]]))[0]
                    raise CheckpointError(f"{path}: weights of {name} are missing or of another shape; copy them again")
            else:
                with torch.random.fork_rng([]):
                    torch.manual_seed(seed)
                    model = kind.from_config(config, trust_remote_code=False).to(number)
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        except CheckpointError:
            raise
        except Exception as error:  # transformers raises what its parsers raise
            raise CheckpointError(
                f"{path}: the model can't be read: {_first_line(error)}; restore it from a copy"
            ) from error
    return model.to(device), tokenizer


def _check_parts(index: pathlib.Path) -> None:
    """Refuse the list of a model's parts that names other files than regular ones beside it."""
    parts = read_json(index, Table(Plain())).get("weight_map")
    for name in sorted(set(map(str, parts.values()))) if isinstance(parts, dict) else ["no weight_map"]:
        if name != pathlib.PurePath(name).name or not (index.parent / name).is_file():
            raise CheckpointError(f"{index}: names {name!r}, and a model's parts are files beside it; copy it again")


def _check_device(name: str) -> None:
    try:
        wanted = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r} is no device: give cpu or cuda") from error
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"device={name}: torch finds no such CUDA GPU on this machine; use device=cpu")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars or notes of transformers."""
    logging = transformers_module().utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
