"""Names of the native systems, read from the text of their files: knowing them imports neither torch nor a system."""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Mapping
from urllib.parse import unquote

from surefoot.core.base.errors import ConfigError, RenderModeError, nearest

PREFIX = "native/"
"""Of the names on the command line: `native/quadrotor-2d` is `surefoot/Quadrotor2D-v0`."""
OBJECTIVE = "objective:"
"""Before an environment's name that says an objective for it too (envs/objectives)."""
WEIGHTED = "weighted:"
"""Before an environment's name whose reward is a weighted sum of its objectives (envs/objectives/several.py)."""
AROUND: Mapping[str, tuple[str, ...]] = {
    OBJECTIVE: ("formula", "machine", "labels"),
    WEIGHTED: ("objectives", "weights"),
}
"""Prefix of names that have another environment's name in them -> arguments that are not that environment's."""
_GYM_ID = re.compile(r'^    gym_id(?:: [^=]+)? = "(surefoot/[\w-]+-v\d+)"$', re.MULTILINE)

PIXELS: Mapping[str, tuple[str, str, bool]] = {
    "native/pendulum-pixels": ("surefoot/PendulumPixels-v0", "native/pendulum", False),
    "native/pendulum-camera": ("surefoot/PendulumCamera-v0", "native/pendulum", True),
    "native/cartpole-balance-pixels": ("surefoot/CartPoleBalancePixels-v0", "native/cartpole-balance", False),
    "native/cartpole-balance-camera": ("surefoot/CartPoleBalanceCamera-v0", "native/cartpole-balance", True),
}
"""Name on the command line -> gymnasium id, the native system that is drawn, and whether its velocities are given."""

GANTRY: Mapping[str, tuple[str, str, int]] = {
    "gantry-pick": ("surefoot/GantryPick", "pick", 80),
    "gantry-pick-two-cubes": ("surefoot/GantryPickTwoCubes", "two-cubes", 80),
    "gantry-pick-sides": ("surefoot/GantryPickSides", "sides", 80),
    "gantry-pick-shift": ("surefoot/GantryPickShift", "shift", 80),
    "gantry-pick-insert": ("surefoot/GantryPickInsert", "insert", 120),
}
"""Name on the command line -> gymnasium id without its version, variant (`envs.gantry.task`), time limit in steps."""
STATE, STATE_ID = "-state", "State"
"""What such a name and id end with, before the version, where the state is observed instead of pictures."""

MUJOCO_SIZES: Mapping[str, tuple[int, int]] = {
    "HalfCheetah": (17, 6),
    "Hopper": (11, 3),
    "Walker2d": (17, 6),
    "Swimmer": (8, 2),
    "Ant": (105, 8),
    "Humanoid": (348, 17),
    "Reacher": (10, 2),
    "Pusher": (23, 7),
    "InvertedPendulum": (4, 1),
    "InvertedDoublePendulum": (9, 1),
}
"""MuJoCo task -> widths of its observations and actions with gymnasium's default arguments."""


DEVICE_SCHEMES = ("playground", "brax", "mjx", "warp")
"""What stands before the slash in names of environments that compute on a device (docs/device_simulators.md)."""


@functools.cache
def native_ids() -> Mapping[str, str]:
    """Name on the command line -> gymnasium id, of each system in `envs/systems`."""
    found = {}
    for path in sorted(pathlib.Path(__file__).with_name("systems").glob("[!_]*.py")):
        for gym_id in _GYM_ID.findall(path.read_text(encoding="utf-8")):
            found[PREFIX + path.stem.replace("_", "-")] = gym_id
    return found


def gantry_ids() -> Mapping[str, str]:
    """Name on the command line -> gymnasium id, of each variant of the gantry's task, by pictures and by the state."""
    found: dict[str, str] = {}
    for name, (gym_id, *_) in GANTRY.items():
        found |= {name: f"{gym_id}-v0", name + STATE: f"{gym_id}{STATE_ID}-v0"}
    return found


def native_names() -> tuple[str, ...]:
    """Every `native/<name>`, those seen through a camera too."""
    return (*native_ids(), *PIXELS)


def gymnasium_id(env_id: str) -> str:
    """The gymnasium id that `env_id` stands for: `native/<name>` and `gantry-pick` become theirs, others stay as is.

    Raises:
        ConfigError: `native/...` of no system; the message names the nearest.
    """
    if not env_id.startswith(PREFIX):
        base, mark, arguments = env_id.partition("?")
        return gantry_ids().get(base, base) + mark + arguments
    name = env_id.replace("_", "-")
    if name in PIXELS:
        return PIXELS[name][0]
    if name not in native_ids():
        raise ConfigError(f"there is no system {env_id!r}; {nearest(env_id, native_names())}")
    return native_ids()[name]


def device_scheme(env_id: str) -> str | None:
    """The scheme of a device simulator's environment; None of any other, also of a gymnasium id with a version.

    >>> device_scheme("playground/CartpoleBalance"), device_scheme("brax/ant-v0"), device_scheme("Pendulum-v1")
    ('playground', None, None)
    """
    scheme, slash, name = env_id.partition("/")
    return scheme if slash and scheme in DEVICE_SCHEMES and not re.search(r"-v\d+$", name) else None


def short_name(env_id: str) -> str:
    """The one name under which reports list an environment: `native/<name>` and `gantry-pick` for both forms."""
    written = env_id.replace("_", "-")
    known = {**native_ids(), **{name: gym_id for name, (gym_id, _, _) in PIXELS.items()}, **gantry_ids()}
    return written if written in known else next((name for name, gym_id in known.items() if gym_id == env_id), env_id)


def in_words(env_id: str) -> str:
    """A name as people read it: an objective that it says stands behind the environment.

    >>> in_words("objective:native/pendulum?formula=F(a %26 b)&labels=my:labels"), in_words("Hopper-v5")
    ('native/pendulum, objective F(a & b)', 'Hopper-v5')
    """
    base, _, arguments = env_id.partition("?")
    if not base.startswith(OBJECTIVE):
        return env_id
    parts = [part.partition("=") for part in arguments.split("&")]
    stated = [unquote(value) for key, _, value in parts if key == "formula"]
    own = "&".join(f"{key}={value}" for key, _, value in parts if key not in ("formula", "machine", "labels"))
    what = f"objective {stated[0]}" if stated else "objective a reward machine"
    return f"{base.removeprefix(OBJECTIVE)}{'?' if own else ''}{own}, {what}"


def is_native(env_id: str) -> bool:
    """Whether an id, of either form, is that of a native system."""
    return gymnasium_id(env_id) in native_ids().values()


def beneath(env_id: str) -> str:
    """The native system under a camera's environment, as `native/<name>`; any other id, of either form, as it is."""
    gym_id = gymnasium_id(env_id)
    return next((system for drawn, system, _ in PIXELS.values() if drawn == gym_id), env_id)


def undrawn(what: str, system: str) -> RenderModeError:
    """The refusal of a native system, of either form of id, that was asked for a frame."""
    name = short_name(system)
    if name not in native_ids():
        return RenderModeError(f"{what}, and {name} draws no frames: draw the `state` of the environment yourself")
    seen = [camera for camera, (_, drawn, _) in PIXELS.items() if drawn == name]
    camera = f"; {' and '.join(seen)} draw the same system" if seen else ""
    return RenderModeError(
        f"{what}, and {name} draws no frames: `surefoot watch RUN -o episodes.html` (or .gif, .mp4) shows episodes of "
        f"a trained policy{camera}"
    )


def refuse_to_draw(render_mode: str | None, system: str) -> None:
    """Refuse a `render_mode` of a native system, of either form of id; None is none.

    Raises:
        RenderModeError: it is not None.
    """
    if render_mode is not None:
        raise undrawn(f"render_mode is {render_mode!r}", system)


def refuse_side_by_side(render_mode: str | None) -> None:
    """Refuse a `render_mode` of simulations that are stepped side by side; None is none.

    Raises:
        RenderModeError: it is not None.
    """
    if render_mode is not None:
        raise RenderModeError(
            f"render_mode is {render_mode!r}, and environments that are stepped together draw no frames: "
            "gymnasium.make draws one, and gymnasium.make_vec with vectorization_mode='sync' several"
        )
