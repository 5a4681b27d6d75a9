"""d3rlpy's ReBRAC: its losses at weights of its own on given rows, or a training run. Prints one line of JSON.

    python d3rlpy_rebrac.py losses --rows rows.npz --weights weights.npz
    python d3rlpy_rebrac.py train --rows dataset.npz --weights weights.npz --updates 3000 --seed 0

Both write the networks to --weights: actor/LAYER/weight, critic/MEMBER/LAYER/weight and so on, the last layer included.
"""

import argparse
import json
import time
import types
from typing import Any

import common
import d3rlpy
import numpy as np
import torch

EPOCH = 500


def algorithm(smoothing: float = 0.2) -> Any:
    """ReBRAC with three layers of 256, layer norms in the critics, and the penalties of CORL for hopper-medium."""
    factory = d3rlpy.models.VectorEncoderFactory
    config = d3rlpy.algos.ReBRACConfig(
        actor_encoder_factory=factory([256, 256, 256]),
        critic_encoder_factory=factory([256, 256, 256], use_layer_norm=True),
        batch_size=common.BATCH_SIZE,
        actor_beta=0.01,
        critic_beta=0.01,
        target_smoothing_sigma=smoothing,
    )
    return config.create(device="cpu:0")


def networks(modules: Any) -> dict[str, np.ndarray]:
    """Weights of the actor, the critics and their targets by name."""
    found: dict[str, np.ndarray] = {}

    def add(name: str, module: torch.nn.Module) -> None:
        for kind, wanted in (("", torch.nn.Linear), ("norm", torch.nn.LayerNorm)):
            for place, layer in enumerate(m for m in module.modules() if isinstance(m, wanted)):
                for part in ("weight", "bias"):
                    found[f"{name}/{kind}{place}/{part}"] = getattr(layer, part).detach().numpy().copy()

    for name in ("policy", "targ_policy"):
        add(name, getattr(modules, name))
    for name in ("q_funcs", "targ_q_funcs"):
        for place, critic in enumerate(getattr(modules, name)):
            add(f"{name}/{place}", critic)
    return found


def losses(rows: dict[str, np.ndarray], seed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Critic and actor loss at fresh weights, targets unlike their networks, without noise on the target's action."""
    d3rlpy.seed(seed)
    found = algorithm(smoothing=0.0)
    found.create_impl((rows["observations"].shape[1],), rows["actions"].shape[1])
    impl = found.impl
    with torch.no_grad():
        for network in (impl._modules.targ_policy, impl._modules.targ_q_funcs, impl._modules.q_funcs):
            for parameter in network.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    batch = types.SimpleNamespace(device="cpu:0", **{name: torch.from_numpy(value) for name, value in rows.items()})
    target = impl.compute_target(batch)
    critic = impl.compute_critic_loss(batch, target).critic_loss
    actor = impl.compute_actor_loss(batch, impl._modules.policy(batch.observations)).actor_loss
    return {"critic": float(critic), "actor": float(actor)}, networks(impl._modules)


def train(rows: dict[str, np.ndarray], updates: int, seed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A run; losses are means over the last `EPOCH` updates."""
    d3rlpy.seed(seed)
    dataset = d3rlpy.dataset.MDPDataset(
        rows["observations"], rows["actions"], rows["rewards"], rows["terminals"], rows["timeouts"]
    )
    found = algorithm()
    epoch = min(EPOCH, updates)
    start, cpu = time.perf_counter(), time.process_time()
    history = found.fit(
        dataset,
        n_steps=updates,
        n_steps_per_epoch=epoch,
        show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )
    spent = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    last = {name: float(history[-1][1][name]) for name in ("critic_loss", "actor_loss")}
    return {**spent, **last, "version": d3rlpy.__version__}, networks(found.impl._modules)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("losses", "train"))
    parser.add_argument("--rows", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with np.load(options.rows) as stored:
        rows = dict(stored)
    if options.what == "losses":
        line, weights = losses(rows, options.seed)
    else:
        line, weights = train(rows, options.updates, options.seed)
    np.savez(options.weights, **weights)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
