"""Pictures of a MuJoCo model without a screen."""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, SimulatorError

Array = np.ndarray[Any, Any]


class Pictures:
    """Draws cameras of a model into pictures of one size.

    It draws by what the environment variable MUJOCO_GL names (egl, osmesa, glfw), and by EGL on a Linux machine without
    a display where it names nothing.

    Args:
        model: an `MjModel` whose offscreen buffer is at least as large as a picture.
        size: height and width, in pixels.

    Raises:
        ConfigError: a size out of its range.
        SimulatorError: nothing on this machine draws; the message says what to set.
    """

    def __init__(self, model: Any, size: int) -> None:
        import mujoco

        largest = min(model.vis.global_.offwidth, model.vis.global_.offheight)
        if not isinstance(size, int) or not 8 <= size <= largest:
            raise ConfigError(f"size is {size!r}; a picture has 8 to {largest} pixels on each side")
        self.model, self.size = model, size
        self._mujoco = mujoco
        self.data = mujoco.MjData(model)
        """What is drawn: set its `qpos` and `mocap_pos`, then call `place`."""
        try:
            self._context = _context()(size, size)
            self._context.make_current()
            self._renderer = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        except Exception as error:
            line = (str(error).strip().splitlines() or ["no message"])[0]
            raise SimulatorError(
                f"MuJoCo draws nothing here ({type(error).__name__}: {line}): set MUJOCO_GL=egl, or osmesa, in the "
                "environment, or observe the state"
            ) from error
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._renderer)
        self._scene, self._option = mujoco.MjvScene(model, 100), mujoco.MjvOption()
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        self._rectangle = mujoco.MjrRect(0, 0, size, size)
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._upside_down = np.empty((size, size, 3), np.uint8)

    def begin(self) -> None:
        """Let what follows be drawn here: another instance may have drawn since."""
        self._context.make_current()

    def place(self) -> None:
        """Compute where everything stands, of the positions in `data`."""
        self._mujoco.mj_kinematics(self.model, self.data)
        self._mujoco.mj_comPos(self.model, self.data)
        self._mujoco.mj_camlight(self.model, self.data)

    def draw(self, camera: int, into: Array) -> None:
        """Fill a (size, size, 3) uint8 picture with what a camera sees, the first row at the top."""
        mujoco = self._mujoco
        self._camera.fixedcamid = camera
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self.model, self.data, self._option, None, self._camera, everything, self._scene)
        mujoco.mjr_render(self._rectangle, self._scene, self._renderer)
        mujoco.mjr_readPixels(self._upside_down, None, self._rectangle, self._renderer)
        into[...] = self._upside_down[::-1]

    def close(self) -> None:
        """Free what the graphics system holds; calling it again does nothing."""
        if self._context is not None:
            self._context.make_current()
            self._renderer.free()
            self._context.free()
            self._context = None


def _context() -> Any:
    """The class of a context to draw in."""
    headless = platform.system() == "Linux" and not os.environ.get("DISPLAY")
    if headless and not os.environ.get("MUJOCO_GL"):
        from mujoco.egl import GLContext

        return GLContext
    from mujoco.gl_context import GLContext

    return GLContext
