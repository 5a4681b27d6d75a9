"""Runs an exported policy where surefoot and torch are not installed: needs numpy, onnxruntime and a simulator.

surefoot export RUN -o policy.onnx
python examples/run_onnx.py policy.onnx --env surefoot/Quadrotor2D-v0
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np
import onnxruntime


class OnnxPolicy:
    """A policy file for a control loop: an observation in, an action out, both in the environment's units."""

    def __init__(self, path: str, seed: int = 0) -> None:
        """Open the file; one thread is fastest for networks of this size."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.action_dim = self.session.get_outputs()[0].shape[1]
        self.samples = any(put.name == "noise" for put in self.session.get_inputs())  # exported with --sampling
        self.generator = np.random.default_rng(seed)

    def select_action(self, observation: np.ndarray) -> np.ndarray:
        """(A,) float32 for (O,)."""
        feed = {"observations": np.asarray(observation, np.float32)[None]}
        if self.samples:
            feed["noise"] = self.generator.standard_normal((1, self.action_dim), np.float32)
        return self.session.run(["actions"], feed)[0][0]


def main() -> None:
    """Run some episodes and print their returns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", help="a .onnx file")
    parser.add_argument("--env", required=True, help="gymnasium id")
    parser.add_argument("--episodes", type=int, default=10)
    arguments = parser.parse_args()

    policy, env, returns = OnnxPolicy(arguments.policy), gymnasium.make(arguments.env), []
    for episode in range(arguments.episodes):
        observation, _ = env.reset(seed=episode)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy.select_action(observation))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    print(f"mean return {np.mean(returns):.1f} over {len(returns)} episodes")


if __name__ == "__main__":
    main()
