"""The model of `gantry-pick`: a gantry of three slides with two fingers over a table, in MuJoCo's own format.

Boxes alone, no meshes and no shadows, so that a step with two pictures of 64 x 64 takes about half a millisecond of a
core without a graphics card (`benchmarks/gantry.py`).
"""

from __future__ import annotations

TIME_STEP, SUBSTEPS = 0.005, 10
"""Seconds of a step of the physics, and how many make a control step: 20 Hz."""
STRIDE = 0.02
"""Meters that a slide's set point moves in a control step under an action of 1."""
REACH = 0.2
"""Meters to both sides that the gantry moves along x and y."""
HOME_HEIGHT, LOWEST, HIGHEST = 0.18, 0.015, 0.24
"""Meters above the table of the point between the fingertips: where episodes begin, and the ends of the slide."""
OPENING = 0.03
"""Meters that a finger moves inwards from open to shut; open, the fingers are 72 mm apart."""
CUBE = (0.018, 0.018, 0.02)
"""Half the sizes of the cube, in meters."""
CUBE_MASS = 0.03
SPREAD = 0.12
"""Meters to both sides of the middle of the table between which the cube lies."""
LIFTED = 0.1
"""Height of the cube's middle, in meters, at which it counts as picked."""

RED, BLUE, GREY = "0.85 0.15 0.12 1", "0.12 0.25 0.85 1", "0.35 0.36 0.38 1"
SLIDES = ("x", "y", "z")
FREE = 7
"""Numbers of a free body's position in `qpos`."""
GANTRY = 5
"""Of the gantry's: three slides and two fingers."""

SOCKET_HOLE, SOCKET_WALL, SOCKET_HEIGHT = 0.024, 0.006, 0.008
"""Half the width of the hole, half the thickness of its walls and half their height, in meters."""
HANDLES = 0.045
"""Meters from the middle of the bar to each of the places where it can be gripped."""


def text(objects: str) -> str:
    """The model with these bodies on the table, whose free joints come after the gantry's joints."""
    speed = STRIDE / (TIME_STEP * SUBSTEPS)  # of a set point, in m/s: actions are integrated
    ends = {"x": (-REACH, REACH), "y": (-REACH, REACH), "z": (LOWEST - HOME_HEIGHT, HIGHEST - HOME_HEIGHT)}
    joints = "".join(
        f'<joint name="{axis}" type="slide" axis="{along}" range="{ends[axis][0]} {ends[axis][1]}" damping="14"/>'
        for axis, along in zip(SLIDES, ("1 0 0", "0 1 0", "0 0 1"), strict=True)
    )
    slides = "".join(
        f'<general name="{axis}" joint="{axis}" dyntype="integrator" biastype="affine" gainprm="{150 * speed}" '
        f'biasprm="0 -150 0" actlimited="true" actrange="{ends[axis][0] / speed} {ends[axis][1] / speed}" '
        'ctrllimited="true" ctrlrange="-1 1"/>'
        for axis in SLIDES
    )
    fingers = "".join(
        f'<body name="{side}" pos="{sign * 0.041} 0 0" gravcomp="1">'
        f'<joint name="{side}" type="slide" axis="{-sign} 0 0" range="0 {OPENING + 0.008}" damping="3"/>'
        f'<geom name="{side}" class="finger" type="box" size="0.005 0.012 0.03" pos="0 0 0.018" mass="0.05"/></body>'
        for side, sign in (("left", -1), ("right", 1))
    )
    return f"""
<mujoco model="gantry-pick">
  <compiler autolimits="true"/>
  <option timestep="{TIME_STEP}" integrator="implicitfast" cone="elliptic" impratio="10"/>
  <size memory="1M"/>
  <visual>
    <quality shadowsize="0" offsamples="0"/><headlight ambient="0.45 0.45 0.45" diffuse="0.5 0.5 0.5" specular="0 0 0"/>
    <global offwidth="640" offheight="640"/><map znear="0.02"/>
  </visual>
  <default>
    <geom condim="4" friction="1.5 0.02 0.001" rgba="{GREY}"/>
    <default class="finger"><geom rgba="0.9 0.75 0.2 1" solref="0.01 1"/></default>
  </default>
  <worldbody>
    <light pos="0 -0.4 1" dir="0 0.4 -1" castshadow="false"/>
    <geom name="table" type="plane" size="0.5 0.5 0.1" rgba="0.62 0.6 0.55 1"/>
    <camera name="front" pos="0 -0.48 0.4" xyaxes="1 0 0 0 0.62 0.78" fovy="46"/>
    <body name="gantry" pos="0 0 {HOME_HEIGHT}" gravcomp="1">
      {joints}
      <geom name="palm" type="box" size="0.05 0.014 0.012" pos="0 0 0.06" mass="0.4"/>
      <geom name="arm" type="box" size="0.012 0.012 0.12" pos="0 0 0.19" mass="0.1" contype="0" conaffinity="0"/>
      <camera name="wrist" pos="0 -0.075 0.075" xyaxes="1 0 0 0 0.8 0.6" fovy="70"/>
      <site name="grip" pos="0 0 0" size="0.001" rgba="0 0 0 0"/>
      {fingers}
    </body>
    {objects}
  </worldbody>
  <equality><joint joint1="right" joint2="left" solref="0.01 1"/></equality>
  <actuator>
    {slides}
    <general name="grip" joint="left" dyntype="integrator" biastype="affine" gainprm="-120" biasprm="0 -120 0"
      actlimited="true" actrange="{-OPENING} 0" ctrllimited="true" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""


def cube(name: str, color: str) -> str:
    """A free cube."""
    size = " ".join(map(str, CUBE))
    return (
        f'<body name="{name}" pos="0 0 {CUBE[2]}"><freejoint/>'
        f'<geom name="{name}" type="box" size="{size}" mass="{CUBE_MASS}" rgba="{color}"/></body>'
    )


def bar(name: str) -> str:
    """A free bar along y with a handle near each end, and between them a plate that is wider than the fingers open."""
    size = " ".join(map(str, CUBE))
    ends = "".join(
        f'<geom name="{name}{sign:+d}" type="box" size="{size}" pos="0 {sign * HANDLES} 0" mass="{CUBE_MASS / 3}" '
        f'rgba="{RED}"/>'
        for sign in (-1, 1)
    )
    wide = f"0.05 {HANDLES - CUBE[1]} {CUBE[2]}"
    plate = f'<geom name="{name}" type="box" size="{wide}" mass="{CUBE_MASS / 3}" rgba="{BLUE}"/>'
    return f'<body name="{name}" pos="0 0 {CUBE[2]}"><freejoint/>{plate}{ends}</body>'


def socket() -> str:
    """Four walls around a hole; it stands where its mocap body is put."""
    far, wall, high = SOCKET_HOLE + SOCKET_WALL, SOCKET_WALL, SOCKET_HEIGHT
    walls = "".join(
        f'<geom type="box" size="{half[0]} {half[1]} {high}" pos="{place[0]} {place[1]} {high}" rgba="{BLUE}"/>'
        for half, place in (
            ((wall, far + wall), (-far, 0)),
            ((wall, far + wall), (far, 0)),
            ((SOCKET_HOLE, wall), (0, -far)),
            ((SOCKET_HOLE, wall), (0, far)),
        )
    )
    return f'<body name="socket" mocap="true" pos="0 0.08 0">{walls}</body>'
