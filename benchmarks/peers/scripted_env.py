"""An environment whose observations, rewards and ends follow a script, whatever the actions are.

Two codes that act in it by different random numbers must hand their losses the same rows: what differs is the
collection. Episodes end by a terminal state, by a time limit, and by both in the same step. Needs numpy and gymnasium.
"""

import gymnasium
import numpy as np

OBSERVATIONS, ACTIONS, STEPS = 5, 2, 4096
ENDS = ((7, True, False), (11, False, True), (1, True, False), (9, True, True), (23, False, True))
"""Length of an episode, and whether it ends by a terminal state and by a time limit; then again from the first."""
NAMES = {"box": "Scripted-v0", "discrete": "ScriptedDiscrete-v0"}


class Scripted(gymnasium.Env):
    """Row k of a table after k resets and steps."""

    def __init__(self, discrete: bool = False) -> None:
        source = np.random.default_rng(0)
        self.table = source.standard_normal((STEPS, OBSERVATIONS)).astype(np.float32)
        self.rewards = source.standard_normal(STEPS).astype(np.float32)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32)
        box = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(ACTIONS) if discrete else box
        self.shown, self.episode, self.length, self.started = 0, -1, 0, False

    def reset(self, *, seed=None, options=None):
        if self.length or not self.started:  # a reset before the first step begins nothing new
            self.episode += 1
        elif self.shown:
            self.shown -= 1
        self.started, self.length = True, 0
        return self.show(), {}

    def step(self, action):
        self.length += 1
        reward = float(self.rewards[self.shown % STEPS])
        length, terminal, limit = ENDS[self.episode % len(ENDS)]
        over = self.length >= length
        return self.show(), reward, over and terminal, over and limit, {}

    def show(self):
        row = self.table[self.shown % STEPS]
        self.shown += 1
        return row.copy()


for kind, name in NAMES.items():
    gymnasium.register(name, entry_point=Scripted, kwargs={"discrete": kind == "discrete"}, disable_env_checker=True)
