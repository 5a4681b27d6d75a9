"""A system's C++ form applied to rows, one at a time, in float32 or float64, for exact worlds and grids."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot import cuda_ext
from surefoot.cuda_ext.system import System


def call_rows(system: System, call: str, **given: Tensor) -> dict[str, Tensor]:
    """What the function `call` of a system's header makes of N rows.

    Args:
        system: one with a C++ form.
        call: reset, observe or step; margin or state_of where the header has them.
        given: name -> (N, width) on the CPU, all of one floating dtype (float64 in double precision, any other in
            single): parameters always; uniforms, states, actions, normals or observations as the call reads them.

    Returns:
        Name -> (N, width): states, observations, rewards, margins, terminated; those that the call doesn't write are 0.

    Raises:
        ValueError: widths that do not fit; no native module.
    """
    module: Any = cuda_ext.native()
    if module is None:
        raise ValueError(f"there is no native module: {cuda_ext.why_not_native()}")
    kind = np.float64 if given["parameters"].dtype == torch.float64 else np.float32
    count = len(given["parameters"])
    widths = {"parameters": len(system.parameters), "uniforms": system.uniforms, "actions": len(system.actions)}
    widths |= {"normals": system.normals, "states": len(system.states), "observations": len(system.observations)}
    widths |= {"rewards": 1, "margins": 1, "terminated": 1}
    arrays = {}
    for name, width in widths.items():
        if name in given:
            rows = given[name].detach().numpy()[:, :width]
            arrays[name] = np.array(rows, kind, order="C")  # a copy: states are written in place
        else:
            arrays[name] = np.zeros((count, width), kind)
    constants = system.matrices()
    matrices = np.zeros((1, 1), kind) if constants is None else constants.reshape(1, -1).numpy().astype(kind)
    module.rows(system.native_name(), call, matrices, **arrays)
    written = ("states", "observations", "rewards", "margins", "terminated")
    return {name: torch.from_numpy(arrays[name]) for name in written}
