"""A training step of flow cloning from two cameras, beside a plain PyTorch loop of the same networks, in one run.

    OMP_NUM_THREADS=1 python benchmarks/visual_step.py --steps 200

Both draw 64 rows of two uint8 pictures, shift them by up to 4 pixels, encode them by two `small` encoders, and take one
step of Adam on the flow-matching loss of a network of three hidden layers of 512, with an average of all of it. They
take turns, so that what else the machine does meets both.
"""

from __future__ import annotations

import argparse
import copy
import time

import torch
from torch import nn

from surefoot.core.base.spec import Array, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.pictures import random_shift
from surefoot.data.store import Store
from surefoot.offline.flow_bc import FlowBC

ROWS, BATCH, TURNS, SHIFT, RATE = 2_000, 64, 4, 4, 0.005


class Eye(nn.Module):
    """The `small` encoder of one camera."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten())
        width = self.trunk(torch.zeros(1, 3, pixels, pixels)).shape[1]
        self.head = nn.Sequential(nn.Linear(width, 50), nn.LayerNorm(50), nn.Tanh())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(B, 50) of (B, 3, H, W) bytes."""
        return self.head(self.trunk(images.float().div_(255).sub_(0.5)))


class Plain:
    """The same networks in a loop as one writes it by hand."""

    def __init__(self, rows: dict[str, torch.Tensor], pixels: int) -> None:
        self.rows = rows
        layers: list[nn.Module] = []
        for inputs in (105, 512, 512):
            layers += [nn.Linear(inputs, 512), nn.GELU(approximate="tanh")]
        self.net = nn.ModuleList([Eye(pixels), Eye(pixels), nn.Sequential(*layers, nn.Linear(512, 4))])
        self.average = copy.deepcopy(self.net)
        self.adam = torch.optim.Adam(self.net.parameters(), 3e-4, fused=True)

    def run(self, steps: int) -> None:
        """Take steps."""
        for _ in range(steps):
            drawn = torch.randint(0, ROWS, (BATCH,))
            seen = []
            for key, eye in zip(("front", "wrist"), self.net, strict=False):
                images = self.rows[f"observations/{key}"].index_select(0, drawn)
                seen.append(eye(random_shift(images, torch.rand(BATCH, 2), SHIFT)))
            actions, start, t = self.rows["actions"][drawn], torch.randn(BATCH, 4), torch.rand(BATCH, 1)
            x = (1 - t) * start + t * actions
            error = self.net[2](torch.cat([*seen, x, t], -1)) - (actions - start)
            self.adam.zero_grad()
            error.square().mean().backward()
            self.adam.step()
            with torch.no_grad():
                torch._foreach_lerp_(list(self.average.parameters()), list(self.net.parameters()), RATE)


def main() -> None:
    """Print steps a second of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of each, in each of four turns")
    parser.add_argument("--pixels", type=int, default=64)
    asked = parser.parse_args()
    torch.manual_seed(0)
    shape = (3, asked.pixels, asked.pixels)
    rows = {
        f"observations/{key}": torch.randint(0, 256, (ROWS, *shape), dtype=torch.uint8) for key in ("front", "wrist")
    }
    rows["actions"] = torch.rand(ROWS, 4) * 2 - 1
    arrays = {key: Array(shape, "uint8", channels="first", low=0, high=255) for key in ("front", "wrist")}
    spec = Spec(arrays, 4, (-1.0,) * 4, (1.0,) * 4)
    agent = FlowBC(spec, encoder="small", hidden=(512, 512, 512)).fresh(0)
    ours = Learner([agent], [0], Uniform(Store.pack(rows)), batch_size=BATCH, kernels=True)
    plain = Plain(rows, asked.pixels)
    spent = {"surefoot": 0.0, "plain PyTorch": 0.0}
    for one in (ours, plain):
        one.run(20)
    for _ in range(TURNS):
        for name, one in (("surefoot", ours), ("plain PyTorch", plain)):
            started = time.process_time()
            one.run(asked.steps)
            spent[name] += time.process_time() - started
    for name, seconds in spent.items():
        print(f"{name}: {TURNS * asked.steps / seconds:.1f} steps a CPU second")


if __name__ == "__main__":
    main()
