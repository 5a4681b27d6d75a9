"""Runs an exported policy where surefoot and torch are not installed: needs numpy, onnxruntime and a simulator.

surefoot export RUN -o policy.onnx
python examples/run_onnx.py policy.onnx --env surefoot/Quadrotor2D-v0

`OnnxPolicy` alone, for a robot, needs numpy and onnxruntime. It knows every file: of policies that read
one vector, an image or several arrays by name, plain ones, those that sample (flow and diffusion policies read their
noise as an input), and those with a memory, such as chunks of actions.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import numpy as np
import onnxruntime


class OnnxPolicy:
    """A policy file for a control loop: an observation in, an action out, both in the environment's units."""

    def __init__(self, path: str, seed: int = 0) -> None:
        """Open the file; one thread is fastest for networks of this size."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = {put.name: put.shape for put in self.session.get_inputs()}
        kinds = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32}
        others = ("noise", "ended", "rewards", "costs")
        self.observed = {  # "observations", which is one vector, or "image", or the names of several arrays
            put.name: (tuple(put.shape[1:]), np.dtype(kinds[put.type]))
            for put in self.session.get_inputs()
            if put.name not in others and not put.name.startswith("memory.")
        }
        self.noise_dim = self.inputs["noise"][1] if "noise" in self.inputs else 0
        self.generator = np.random.default_rng(seed)
        self.reset()

    def reset(self) -> None:
        """Begin an episode: what is remembered does not count any more."""
        names = [name for name in self.inputs if name.startswith("memory.")]
        self.memory = {name: np.zeros((1, *self.inputs[name][1:]), np.float32) for name in names}
        self.first = True
        self.observe(0.0)

    def observe(self, reward: float, cost: float = 0.0) -> None:
        """What the last action brought: only policies that read `rewards` and `costs` need it."""
        outcome = {"rewards": reward, "costs": cost}
        self.outcome = {name: np.array([value], np.float32) for name, value in outcome.items() if name in self.inputs}

    def read(self, observation: np.ndarray | Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """An observation as the file takes it; one that it can't take, or is not finite, is a ValueError."""
        wanted = ", ".join(f"{name} {shape} {kind}" for name, (shape, kind) in self.observed.items())
        if not isinstance(observation, Mapping):
            observation = dict.fromkeys(self.observed, observation) if len(self.observed) == 1 else {}
        found = {name: np.asarray(observation[name]) for name in self.observed if name in observation}
        for name, (shape, kind) in self.observed.items():
            if name not in found or found[name].shape != shape or (kind == np.uint8 and found[name].dtype != kind):
                raise ValueError(
                    f"the policy reads {wanted}; the observation's {name} is "
                    + (f"{found[name].shape} {found[name].dtype}" if name in found else "not there")
                )
        with np.errstate(over="ignore"):
            ready = {name: found[name].astype(kind) for name, (_, kind) in self.observed.items()}
        for name, array in ready.items():
            if not np.isfinite(array).all():
                index = [int(k) for k in np.argwhere(~np.isfinite(array))[0]]
                value = found[name][tuple(index)]
                raise ValueError(f"{name}{index} is {value}; check that sensor. The policy was not run")
        return {name: array[None] for name, array in ready.items()}

    def select_action(
        self, observation: np.ndarray | Mapping[str, np.ndarray], noise: np.ndarray | None = None
    ) -> np.ndarray:
        """(A,) float32 for an observation: (O,), an image, or a mapping of several arrays by name.

        A policy that samples draws (Z,) standard normal numbers where it is given none. Where an action or what is to
        be remembered is not finite, that is a ValueError, and the memory stays as it was.
        """
        feed = {**self.read(observation), **self.outcome, **self.memory}
        if self.noise_dim:
            drawn = self.generator.standard_normal(self.noise_dim, np.float32) if noise is None else noise
            feed["noise"] = np.asarray(drawn, np.float32)[None]
        if "ended" in self.inputs:
            feed["ended"] = np.array([self.first])
        actions, *following = self.session.run(None, feed)
        if not all(np.isfinite(array).all() for array in (actions, *following)):
            raise ValueError("the action is not finite: the observation, a reward or a cost is too large or not finite")
        self.memory, self.first = dict(zip(self.memory, following, strict=True)), False
        return actions[0]


def main() -> None:
    """Run some episodes and print their returns."""
    import gymnasium

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", help="a .onnx file")
    parser.add_argument("--env", required=True, help="gymnasium id")
    parser.add_argument("--episodes", type=int, default=10)
    arguments = parser.parse_args()

    policy, env, returns = OnnxPolicy(arguments.policy), gymnasium.make(arguments.env), []
    for episode in range(arguments.episodes):
        observation, _ = env.reset(seed=episode)
        policy.reset()
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, info = env.step(policy.select_action(observation))
            policy.observe(float(reward), float(info.get("cost", 0.0)))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    print(f"mean return {np.mean(returns):.1f} over {len(returns)} episodes")


if __name__ == "__main__":
    main()
