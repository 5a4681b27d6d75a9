"""The environment checker names each fault that a user can make, once, with what to do, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from surefoot.core.base.errors import ConfigError
from surefoot.envs.adapters import adapt
from surefoot.envs.check import Finding, check_environment


class Good(gymnasium.Env[Any, Any]):
    """A point that drifts and ends at the wall; faults are put in by overriding single members."""

    observation_space: Any = spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space: Any = spaces.Box(-1.0, 1.0, (1,), np.float32)
    limit: int | None = 30

    def __init__(self) -> None:
        self.count = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.count = self.np_random.uniform(-1, 1), 0
        return self.observe(), {}

    def observe(self) -> Any:
        return np.array([self.place, min(self.count, 90) / 10], np.float32)

    def move(self, action: Any) -> float:
        return float(np.clip(action, -1, 1)[0])

    def info(self) -> dict[str, Any]:
        return {"margin": 2.0 - abs(self.place), "cost": float(abs(self.place) > 2)}

    def flags(self) -> Any:
        return abs(self.place) > 3, self.limit is not None and self.count >= self.limit

    def reward(self) -> Any:
        return -abs(self.place)

    def step(self, action: Any) -> Any:
        self.place, self.count = self.place + self.move(action), self.count + 1
        terminated, truncated = self.flags()
        return self.observe(), self.reward(), bool(terminated), bool(truncated), self.info()


def fault(**members: Any) -> Good:
    """A good environment with some members replaced."""
    return type("Faulty", (Good,), members)()  # type: ignore[no-any-return]


def count_beyond(self: Good) -> Any:
    return np.array([99.0 if self.count == 5 else self.place, 0], np.float32)


def nan_at_four(self: Good) -> Any:
    return np.array([np.nan if self.count == 4 else self.place, 0], np.float32)


def same_array(self: Good) -> Any:
    self.memory = getattr(self, "memory", np.zeros(2, np.float32))
    self.memory[0] = self.place
    return self.memory


def old_reset(self: Good) -> Any:
    self.place, self.count = 0.0, 0
    return self.observe()


def unseeded_reset(self: Good, *, seed: Any = None, options: Any = None) -> Any:
    self.place, self.count = np.random.default_rng().uniform(), 0
    return self.observe(), {}


def stubborn_reset(self: Good, *, seed: Any = None, options: Any = None) -> Any:
    gymnasium.Env.reset(self, seed=3 if seed is None else seed)
    self.place, self.count = self.np_random.uniform(), 0
    return self.observe(), {}


def fixed_reset(self: Good, *, seed: Any = None, options: Any = None) -> Any:
    self.place, self.count = 0.0, 0
    return self.observe(), {}


def just_observation(self: Good, *, seed: Any = None, options: Any = None) -> Any:
    return fixed_reset(self)[0]


def greedy_step(self: Good, action: Any) -> Any:
    result = Good.step(self, action)
    action *= 0
    return result


def int_flag(self: Good, action: Any) -> Any:
    observation, reward, terminated, truncated, info = Good.step(self, action)
    return observation, reward, int(terminated), truncated, info


def refusing_move(self: Good, action: Any) -> float:
    if abs(action[0]) > 1:
        raise ValueError("too strong")
    return float(action[0])


def never(self: Good) -> Any:
    self.place = float(np.clip(self.place, -2, 2))
    return False, False


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no space": ({"observation_space": None}, "error", "observation_space is NoneType"),
    "matrix": ({"observation_space": spaces.Box(-9, 9, (2, 2)), "observe": lambda s: np.zeros((2, 2), np.float32)},
               "error", "FlattenObservation"),
    "tuple": ({"observation_space": spaces.Tuple((Good.observation_space, spaces.Discrete(2))),
               "observe": lambda s: (Good.observe(s), 1)}, "error", "observations are Tuple.*FlattenObservation"),
    "text": ({"observation_space": spaces.Text(9), "observe": lambda s: "left"}, "error", "observations are Text"),
    "sequence": ({"observation_space": spaces.Sequence(spaces.Discrete(3)), "observe": lambda s: (1,) * (s.count + 1)},
                 "error", "observations are Sequence"),
    "dict": ({"observation_space": spaces.Dict(a=Good.observation_space), "observe": lambda s: {"a": Good.observe(s)}},
             "warning", "Dict of a"),
    "float64": ({"observation_space": spaces.Box(-9.0, 9.0, (2,), np.float64),
                 "observe": lambda s: np.array([s.place, 0.0])}, "warning", "float64, and surefoot"),
    "discrete": ({"action_space": spaces.Discrete(3), "move": lambda s, a: float(a - 1)}, "warning",
                 "discrete actions.*ppo"),
    "choices": ({"action_space": spaces.MultiDiscrete([2, 3]), "move": lambda s, a: float(a[0])}, "warning",
                "several choices at once"),
    "too many choices": ({"action_space": spaces.MultiDiscrete([9] * 5), "move": lambda s, a: float(a[0] - 4)}, "error",
                         "59,049 combinations of choices"),
    "whole numbers": ({"action_space": spaces.Box(0, 5, (1,), np.int32)}, "error", "whole numbers.*round in"),
    "unbounded": ({"action_space": spaces.Box(-np.inf, np.inf, (1,))}, "error", "no finite bounds"),
    "locked": ({"action_space": spaces.Box(np.float32([-1, 2]), np.float32([1, 2]))}, "warning",
               "action 1 has low 2.0 and high 2.0, and so that value always; give it a range if"),
    "empty range": ({"action_space": spaces.Box(np.float32([2]), np.float32([2]))}, "error",
                    "action 0 has low 2.0 and high 2.0; give every action a range"),
    "reset without seed": ({"reset": old_reset}, "error", r"reset\(seed=...\) is refused"),
    "reset of one": ({"reset": just_observation}, "error",
                     r"reset gives float32 of shape \(2,\); return observation and info"),
    "old step": ({"step": lambda s, a: Good.step(s, a)[:4]}, "error", "step gives 4 values.*once done"),
    "shape": ({"observe": lambda s: np.zeros(3, np.float32)}, "error", r"shape \(3,\), and the space has \(2,\)"),
    "dtype": ({"observe": lambda s: np.array([s.place, 0.0])}, "warning", "float64, and the space is float32"),
    "list": ({"observe": lambda s: [s.place, 0.0]}, "error", "is list"),
    "nan": ({"observe": nan_at_four}, "error", "observation of step 3 holds nan at index 0"),
    "outside": ({"observe": count_beyond}, "error", r"step 4 holds 99.0 at index 0, outside \[-10.0, 10.0\]"),
    "same array": ({"observe": same_array}, "warning", "same array every time"),
    "action changed": ({"step": greedy_step}, "warning", "changes the action array"),
    "reward array": ({"reward": lambda s: np.ones(1)}, "error", r"reward of step 0 is float64 of shape \(1,\)"),
    "reward nan": ({"reward": lambda s: float("nan")}, "error", "reward of step 0 is nan"),
    "flag": ({"step": int_flag}, "error", "terminated of step 0 is 0, no bool"),
    "info": ({"info": lambda s: None}, "error", "step gives an info of None"),
    "cost sign": ({"info": lambda s: {"cost": 1.0, "margin": 1.0}}, "error", "cost is 1.0 and the margin 1.0"),
    "cost size": ({"info": lambda s: {"cost": 7.0}}, "warning", "is 7.0"),
    "raises": ({"move": lambda s, a: [0.0][s.count > 3]}, "error", r"step 4 raised IndexError: .*check.py:\d+\)"),
    "cost below 0": ({"info": lambda s: {"cost": -1.0}}, "error", "is -1.0, below 0; give 0 on a safe step"),
    "costs": ({"info": lambda s: {"costs": 1.0}}, "warning", "is read by nothing; put the step's cost into info"),
    "cost array": ({"info": lambda s: {"cost": np.zeros(2)}}, "error", "make cost one finite number"),
    "cost at times": ({"info": lambda s: {"cost": 1.0} if s.count == 2 else {}}, "error", "not in step 0"),
    "time limit as end": ({"flags": lambda s: (s.count == 7, False)}, "warning", "after exactly 7 steps.*truncated"),
    "endless": ({"flags": never, "limit": None}, "warning", "max_episode_steps"),
    "unseeded": ({"reset": unseeded_reset}, "error", "same seed and actions differ"),
    "stubborn": ({"reset": stubborn_reset}, "error", "every reset without a seed"),
    "fixed start": ({"reset": fixed_reset}, "warning", "another seed gives the same episode"),
    "no clipping": ({"move": lambda s, a: float(a[0])}, "warning", "more than the highest action"),
    "refuses": ({"move": refusing_move}, "warning", "raises ValueError"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_once_with_what_to_do(name: str) -> None:
    members, level, words = FAULTS[name]
    findings = check_environment(fault(**members))
    matching = [f for f in findings if f.level == level]
    assert len(matching) == 1, [str(f) for f in findings]
    assert len(findings) == 1, [str(f) for f in findings]
    _assert_words(str(findings[0]), words)
    assert str(findings[0]).startswith(f"{level}: ")


def _assert_words(text: str, words: str) -> None:
    assert re.search(words, text), text
    assert "\n" not in text


def test_a_good_environment_has_no_findings() -> None:
    assert check_environment(Good()) == []
    assert check_environment("Pendulum-v1") == []


def test_an_id_is_made_and_closed_and_an_unknown_one_refused() -> None:
    closed: list[bool] = []

    class Closing(Good):
        def close(self) -> None:
            closed.append(True)

    gymnasium.register("SurefootChecked-v0", entry_point=Closing, max_episode_steps=20)
    try:
        assert check_environment("SurefootChecked-v0", steps=50) == []
        assert closed == [True]
    finally:
        gymnasium.registry.pop("SurefootChecked-v0")
    with pytest.raises(ConfigError, match="Pendulum-v1"):
        check_environment("Pendulm-v1")


def test_a_time_limit_that_is_not_kept_is_an_error() -> None:
    env = fault(limit=40)
    env.spec = gymnasium.envs.registration.EnvSpec("Late-v0", max_episode_steps=10)
    env.unwrapped.move = lambda action: 0.0  # type: ignore[method-assign]
    assert any("above its time limit of 10" in str(finding) for finding in check_environment(env))


def vector(mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([Good, Good], autoreset_mode=mode)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_gymnasium_s_vector_environments_have_no_findings(mode: AutoresetMode) -> None:
    assert check_environment(vector(mode)) == []
    assert check_environment(adapt(vector(mode), tensors="torch")) == []


def test_an_id_with_a_vector_entry_point_is_checked_as_a_vector_too() -> None:
    class Flawed(CartPoleVectorEnv):
        metadata: Any = {}  # noqa: RUF012

    gymnasium.register("SurefootFlawed-v0", vector_entry_point=Flawed)
    try:
        findings = check_environment("SurefootFlawed-v0")
    finally:
        gymnasium.registry.pop("SurefootFlawed-v0")
    assert [str(finding) for finding in findings if "when it resets" in finding.what]


def changed(mode: AutoresetMode, change: Callable[[list[Any]], None]) -> list[Finding]:
    """Findings about a vector environment whose steps are changed on their way out."""

    class Changed(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            result = list(super().step(actions))
            change(result)
            return tuple(result)

    return check_environment(Changed([Good, Good], autoreset_mode=mode))


def put(index: int, value: Any) -> Callable[[list[Any]], None]:
    return lambda result: result.__setitem__(index, value(result[index]) if callable(value) else value)


def drop_final(result: list[Any]) -> None:
    result[4].pop("final_obs", None)


def reset_as_final(result: list[Any]) -> None:
    if "final_obs" in result[4]:
        result[4]["final_obs"] = result[0].copy()


def zero_final(result: list[Any]) -> None:
    if "final_obs" in result[4]:
        result[4]["final_obs"] = np.zeros_like(result[0])


@pytest.mark.parametrize(
    ("mode", "change", "words"),
    [
        (AutoresetMode.SAME_STEP, drop_final, "ended in step .* without info"),
        (AutoresetMode.SAME_STEP, reset_as_final, "is the reset observation"),
        (AutoresetMode.SAME_STEP, zero_final, "differs from the observations in rows that did not end"),
        (AutoresetMode.NEXT_STEP, put(1, lambda r: r - 1), "still gives a reward or a flag"),
        (AutoresetMode.NEXT_STEP, put(4, lambda i: {**i, "final_obs": 0}), "the mode is NEXT_STEP"),
        (AutoresetMode.SAME_STEP, put(1, lambda r: r[:, None]), r"rewards of step 0 have shape \(2, 1\)"),
        (AutoresetMode.SAME_STEP, put(1, lambda r: r * np.nan), "not finite"),
        (AutoresetMode.SAME_STEP, put(2, lambda f: f.astype(int)), "return bool flags"),
        (AutoresetMode.SAME_STEP, put(0, lambda o: o[:, :1]), r"\(2, 1\), and the space has \(2, 2\)"),
        (AutoresetMode.SAME_STEP, put(0, lambda o: o * np.nan), "not all finite"),
        (
            AutoresetMode.SAME_STEP,
            put(4, lambda i: {**i, "cost": np.ones(2), "final_info": {}}),
            "0 the cost is 1.0",
        ),
        (AutoresetMode.SAME_STEP, lambda result: result.pop(), "step 0 gives 4 values"),
    ],
)
def test_a_vector_environment_that_breaks_its_mode_is_told_so(mode: AutoresetMode, change: Any, words: str) -> None:
    findings = changed(mode, change)
    assert findings
    _assert_words(" | ".join(map(str, findings)), words)


def test_a_vector_environment_whose_seed_does_nothing_is_told_so() -> None:
    class Unseeded(SyncVectorEnv):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return super().reset(options=options)

    findings = check_environment(Unseeded([Good, Good], autoreset_mode=AutoresetMode.SAME_STEP))
    assert ["two resets with the same seed" in str(finding) for finding in findings] == [True]


def test_constraints_that_come_and_go_are_an_error_in_a_vector_too() -> None:
    def some(result: list[Any]) -> None:
        if np.random.default_rng(int(result[1].sum() * 1e6) % 1000).random() < 0.5:
            result[4].pop("margin", None)
            (result[4].get("final_info") or {}).pop("margin", None)

    findings = changed(AutoresetMode.SAME_STEP, some)
    assert any("give cost and margin in every step" in str(finding) for finding in findings)
