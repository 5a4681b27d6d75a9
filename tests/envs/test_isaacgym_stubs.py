"""The Isaac Gym stubs cover the surface that user code uses, accept a correct program and refuse a wrong one."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STUBS = ROOT / "isaacgym-stubs"

# The methods of `gym` that the sources of IsaacGymEnvs call, counted in its repository.
USED = """
acquire_actor_root_state_tensor acquire_dof_force_tensor acquire_dof_state_tensor acquire_force_sensor_tensor
acquire_jacobian_tensor acquire_mass_matrix_tensor acquire_net_contact_force_tensor
acquire_rigid_body_state_tensor add_ground add_lines add_triangle_mesh apply_rigid_body_force_tensors
begin_aggregate clear_lines create_actor create_asset_force_sensor create_box create_env create_force_sensor
create_rigid_body_attractor create_sim create_sphere create_usd_exporter create_viewer debug_print_asset
draw_viewer enable_actor_dof_force_sensors end_aggregate export_usd_sim fetch_results find_actor_dof_handle
find_actor_handle find_actor_index find_actor_rigid_body_handle find_actor_rigid_body_index find_asset_dof_index
find_asset_rigid_body_index get_actor_count get_actor_dof_count get_actor_dof_properties get_actor_handle
get_actor_index get_actor_joint_dict get_actor_name get_actor_rigid_body_count get_actor_rigid_body_properties
get_actor_rigid_shape_count get_actor_rigid_shape_properties get_asset_actuator_count
get_asset_actuator_joint_name get_asset_actuator_properties get_asset_dof_count get_asset_dof_names
get_asset_dof_properties get_asset_joint_count get_asset_rigid_body_count get_asset_rigid_body_name
get_asset_rigid_body_names get_asset_rigid_shape_count get_asset_rigid_shape_properties get_asset_tendon_count
get_asset_tendon_name get_asset_tendon_properties get_env_dof_count get_env_origin get_env_rigid_body_count
get_frame_count get_rigid_transform get_sim_actor_count get_sim_dof_count get_sim_params
get_viewer_camera_transform initialize load_asset poll_viewer_events prepare_sim query_viewer_action_events
query_viewer_has_closed refresh_actor_root_state_tensor refresh_dof_force_tensor refresh_dof_state_tensor
refresh_force_sensor_tensor refresh_jacobian_tensors refresh_mass_matrix_tensors
refresh_net_contact_force_tensor refresh_rigid_body_state_tensor set_actor_dof_properties
set_actor_rigid_shape_properties set_actor_root_state_tensor set_actor_root_state_tensor_indexed set_actor_scale
set_asset_rigid_shape_properties set_asset_tendon_properties set_dof_actuation_force_tensor
set_dof_actuation_force_tensor_indexed set_dof_position_target_tensor set_dof_position_target_tensor_indexed
set_dof_state_tensor_indexed set_rigid_body_color set_sim_params simulate step_graphics
subscribe_viewer_keyboard_event subscribe_viewer_mouse_event sync_frame_time viewer_camera_look_at
write_viewer_image_to_file
"""

# Names of gymapi.
NAMES = """
acquire_gym Gym Sim Env Viewer Asset SimParams PhysXParams FlexParams AssetOptions PlaneParams TriangleMeshParams
HeightFieldParams VhacdParams CameraProperties AttractorProperties Vec3 Quat Transform RigidBodyProperties
RigidShapeProperties SIM_PHYSX SIM_FLEX UP_AXIS_Y UP_AXIS_Z DOF_MODE_NONE DOF_MODE_POS DOF_MODE_VEL DOF_MODE_EFFORT
DOMAIN_ENV DOMAIN_ACTOR DOMAIN_SIM LOCAL_SPACE ENV_SPACE GLOBAL_SPACE MESH_VISUAL MESH_COLLISION
MESH_VISUAL_AND_COLLISION COMPUTE_PER_VERTEX COMPUTE_PER_FACE AXIS_X AXIS_TRANSLATION KEY_V KEY_SPACE KEY_ESCAPE KEY_R
MOUSE_LEFT_BUTTON INVALID_HANDLE ContactCollection UsdExportOptions DEFAULT_VIEWER_WIDTH DEFAULT_VIEWER_HEIGHT
"""

# Small stand-ins, so that mypy needn't read all of torch and numpy: what is checked is the stubs.
TORCH = """
from typing import Any, Union
class dtype: ...
class device: ...
int32: dtype
class Tensor:
    def view(self, *shape: int) -> Tensor: ...
    def clone(self) -> Tensor: ...
    def to(self, kind: Union[dtype, str]) -> Tensor: ...
    def __getitem__(self, key: Any) -> Tensor: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    def __mul__(self, other: Any) -> Tensor: ...
    def __len__(self) -> int: ...
def zeros(*shape: int) -> Tensor: ...
"""
NUMPY = "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass NDArray(Generic[T]): ...\n"

PROGRAM = """
import torch
from isaacgym import gymapi, gymtorch, gymutil
from isaacgym.torch_utils import quat_rotate_inverse, to_torch
from isaacgymenvs.tasks.base.vec_task import VecTask

class Cartpole(VecTask):
    def create_sim(self, compute: int, graphics: int, engine: int, params: gymapi.SimParams) -> gymapi.Sim:
        params.up_axis = gymapi.UP_AXIS_Z
        params.gravity = gymapi.Vec3(0.0, 0.0, -9.81)
        params.physx.contact_collection = gymapi.ContactCollection(1)
        self.sim = super().create_sim(compute, graphics, engine, params)
        plane = gymapi.PlaneParams()
        plane.normal = gymapi.Vec3(0.0, 0.0, 1.0)
        self.gym.add_ground(self.sim, plane)
        options = gymapi.AssetOptions()
        options.fix_base_link = True
        asset = self.gym.load_asset(self.sim, "assets", "cartpole.urdf", options)
        env = self.gym.create_env(self.sim, gymapi.Vec3(-1, -1, 0), gymapi.Vec3(1, 1, 1), 8)
        pose = gymapi.Transform(p=gymapi.Vec3(0.0, 0.0, 2.0))
        pose.r = gymapi.Quat.from_axis_angle(gymapi.Vec3(1, 0, 0), 0.5)
        actor = self.gym.create_actor(env, asset, pose, "cartpole", 0, 1, 0)
        properties = self.gym.get_actor_dof_properties(env, actor)
        self.gym.set_actor_dof_properties(env, actor, properties)
        self.index = self.gym.get_actor_index(env, actor, gymapi.DOMAIN_SIM)
        self.gym.prepare_sim(self.sim)
        self.dof_state = gymtorch.wrap_tensor(self.gym.acquire_dof_state_tensor(self.sim))
        self.jacobian = gymtorch.wrap_tensor(self.gym.acquire_jacobian_tensor(self.sim, "cartpole"))
        root = gymtorch.wrap_tensor(self.gym.acquire_actor_root_state_tensor(self.sim)).view(-1, 13)
        self.gravity = quat_rotate_inverse(root[:, 3:7], to_torch([0, 0, -1], device=self.device))
        return self.sim

    def pre_physics_step(self, actions: torch.Tensor) -> None:
        forces = gymtorch.unwrap_tensor(actions * 400.0)
        self.gym.set_dof_actuation_force_tensor(self.sim, forces)

    def post_physics_step(self) -> None:
        self.gym.refresh_dof_state_tensor(self.sim)
        self.obs_buf[:] = self.dof_state
        self.extras["time_outs"] = self.timeout_buf

    def reset_idx(self, env_ids: torch.Tensor) -> None:
        ids = gymtorch.unwrap_tensor(env_ids.to(torch.int32))
        self.gym.set_dof_state_tensor_indexed(self.sim, gymtorch.unwrap_tensor(self.dof_state), ids, len(env_ids))
        self.progress_buf[env_ids] = 0
        if self.viewer is not None:
            axes = gymutil.AxesGeometry(0.1)
            gymutil.draw_lines(axes, self.gym, self.viewer, gymapi.Env(), gymapi.Transform())
"""

# line of code -> what mypy must say about it
WRONG = {
    "gym.set_dof_state_tensor(sim, torch.zeros(2, 2))": '"torch.Tensor"; expected "isaacgym.gymapi.Tensor"',
    "gym.acquire_dof_state_tensor(sim).view(2, 2)": 'has no attribute "view"',
    "gym.get_actor_index(gymapi.Env(), 0, 2)": 'expected "IndexDomain"',
    "gym.refresh_jacobian_tensor(sim)": 'maybe "refresh_jacobian_tensors"',
    "gym.set_dof_state_tensor_indexed(sim, gymtorch.unwrap_tensor(torch.zeros(1)))": "Missing positional arguments",
    "gymapi.SimParams().gravity = (0.0, 0.0, -9.81)": 'expected "Vec3"|variable has type "Vec3"',
    "gym.create_sim(0, 0, gymapi.SIM_PHYSX, gymapi.PhysXParams())": 'expected "SimParams"',
    "gymapi.Quat.from_euler_zyx(gymapi.Vec3())": "Missing positional arguments",
}


def members(path: pathlib.Path) -> dict[str, set[str]]:
    """Names at the top of a stub file (""), and in each of its classes."""
    found: dict[str, set[str]] = {"": set()}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
            found[""].add(node.name)
        elif isinstance(node, ast.FunctionDef):
            found[""].add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[""].add(node.target.id)
    return found


def test_every_method_and_name_that_isaacgymenvs_uses_is_there() -> None:
    found = members(STUBS / "isaacgym-stubs" / "gymapi.pyi")
    used = set(USED.split())
    assert len(used) == 107
    assert used <= found["Gym"], sorted(used - found["Gym"])
    assert set(NAMES.split()) <= found[""], sorted(set(NAMES.split()) - found[""])
    for tensor in (
        "actor_root_state",
        "dof_state",
        "rigid_body_state",
        "dof_force",
        "force_sensor",
        "net_contact_force",
    ):
        assert {f"acquire_{tensor}_tensor", f"refresh_{tensor}_tensor"} <= found["Gym"]


def test_every_stub_file_is_listed_for_the_wheel() -> None:
    listed = set(tomllib.loads((STUBS / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {
        ".".join(file.parent.relative_to(STUBS).parts) for file in STUBS.rglob("*.pyi") if "build" not in file.parts
    }
    assert there == listed


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    pytest.importorskip("mypy", reason="mypy is not installed")
    folder = tmp_path_factory.mktemp("isaacgym")
    for name in ("isaacgym", "isaacgymenvs"):  # mypy reads *-stubs from site-packages only; by this name from anywhere
        shutil.copytree(STUBS / f"{name}-stubs", folder / name)
    for name, text in {"torch/__init__.pyi": TORCH, "numpy/__init__.pyi": "", "numpy/typing.pyi": NUMPY}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def mypy(folder: pathlib.Path, program: str) -> tuple[int, str]:
    (folder / "program.py").write_text(program)
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-site-packages", "--cache-dir", "cache", "program.py"],
        cwd=folder, env={**os.environ, "MYPYPATH": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return result.returncode, result.stdout + result.stderr


def test_a_correct_program_passes_mypy_in_strict_mode(workspace: pathlib.Path) -> None:
    code, output = mypy(workspace, PROGRAM)
    assert code == 0, output


def test_each_wrong_line_is_refused_by_mypy(workspace: pathlib.Path) -> None:
    head = "import torch\nfrom isaacgym import gymapi, gymtorch\ngym, sim = gymapi.acquire_gym(), gymapi.Sim()\n"
    code, output = mypy(workspace, head + "\n".join(WRONG) + "\n")
    assert code == 1
    for line, (wrong, words) in enumerate(WRONG.items(), start=head.count("\n") + 1):
        said = [text for text in output.splitlines() if f"program.py:{line}:" in text]
        assert any(re.search(words, text) for text in said), (wrong, said)
    blamed = {int(text.split(":")[1]) for text in output.splitlines() if " error: " in text}
    assert len(blamed) == len(WRONG), output
