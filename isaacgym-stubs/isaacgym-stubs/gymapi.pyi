# Isaac Gym Preview 4. Handles are ints; Sim, Env, Viewer, Asset and Tensor are opaque.
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

class Sim: ...
class Env: ...
class Viewer: ...
class Asset: ...
class UsdExporter: ...

class Tensor:
    """Opaque: `gymtorch.wrap_tensor` makes a torch tensor of it."""

    ndim: int
    shape: tuple[int, ...]

class Vec3:
    x: float
    y: float
    z: float
    def __init__(self, x: float = ..., y: float = ..., z: float = ...) -> None: ...
    def __add__(self, other: Vec3) -> Vec3: ...
    def __sub__(self, other: Vec3) -> Vec3: ...
    def __mul__(self, other: float) -> Vec3: ...
    def __neg__(self) -> Vec3: ...
    def cross(self, other: Vec3) -> Vec3: ...
    def dot(self, other: Vec3) -> float: ...
    def length(self) -> float: ...
    def normalize(self) -> Vec3: ...
    dtype: Any

class Quat:
    x: float
    y: float
    z: float
    w: float
    def __init__(self, x: float = ..., y: float = ..., z: float = ..., w: float = ...) -> None: ...
    def __mul__(self, other: Quat) -> Quat: ...
    @staticmethod
    def from_axis_angle(axis: Vec3, angle: float) -> Quat: ...
    @staticmethod
    def from_euler_zyx(z: float, y: float, x: float) -> Quat: ...
    def to_euler_zyx(self) -> tuple[float, float, float]: ...
    def rotate(self, vector: Vec3) -> Vec3: ...
    def inverse(self) -> Quat: ...
    def normalize(self) -> Quat: ...
    dtype: Any

class Transform:
    p: Vec3
    r: Quat
    def __init__(self, p: Vec3 = ..., r: Quat = ...) -> None: ...
    def __mul__(self, other: Transform) -> Transform: ...
    def inverse(self) -> Transform: ...
    def transform_point(self, point: Vec3) -> Vec3: ...
    def transform_vector(self, vector: Vec3) -> Vec3: ...
    @staticmethod
    def from_buffer(buffer: Any) -> Transform: ...
    dtype: Any

class Mat33: ...
class Mat44: ...

class SimType(int):
    name: str
    value: int
    def __init__(self, value: int) -> None: ...
    SIM_PHYSX: SimType
    SIM_FLEX: SimType

class UpAxis(int):
    name: str
    value: int
    def __init__(self, value: int) -> None: ...
    UP_AXIS_Y: UpAxis
    UP_AXIS_Z: UpAxis

class DofDriveMode(int):
    name: str
    value: int
    def __init__(self, value: int) -> None: ...
    DOF_MODE_NONE: DofDriveMode
    DOF_MODE_POS: DofDriveMode
    DOF_MODE_VEL: DofDriveMode
    DOF_MODE_EFFORT: DofDriveMode

class DofType(int):
    name: str
    value: int
    def __init__(self, value: int) -> None: ...
    DOF_INVALID: DofType
    DOF_ROTATION: DofType
    DOF_TRANSLATION: DofType

class IndexDomain(int):
    name: str
    value: int
    def __init__(self, value: int) -> None: ...
    DOMAIN_ACTOR: IndexDomain
    DOMAIN_ENV: IndexDomain
    DOMAIN_SIM: IndexDomain

class CoordinateSpace(int):
    name: str
    value: int
    def __init__(self, value: int) -> None: ...
    ENV_SPACE: CoordinateSpace
    LOCAL_SPACE: CoordinateSpace
    GLOBAL_SPACE: CoordinateSpace

class MeshType(int):
    name: str
    value: int
    def __init__(self, value: int) -> None: ...
    MESH_NONE: MeshType
    MESH_COLLISION: MeshType
    MESH_VISUAL: MeshType
    MESH_VISUAL_AND_COLLISION: MeshType

class MeshNormalMode(int):
    name: str
    value: int
    def __init__(self, value: int) -> None: ...
    FROM_ASSET: MeshNormalMode
    COMPUTE_PER_VERTEX: MeshNormalMode
    COMPUTE_PER_FACE: MeshNormalMode

class ImageType(int):
    name: str
    value: int
    def __init__(self, value: int) -> None: ...
    IMAGE_COLOR: ImageType
    IMAGE_DEPTH: ImageType
    IMAGE_SEGMENTATION: ImageType
    IMAGE_OPTICAL_FLOW: ImageType

class ContactCollection(int):
    name: str
    value: int
    def __init__(self, value: int) -> None: ...
    CC_NEVER: ContactCollection
    CC_LAST_SUBSTEP: ContactCollection
    CC_ALL_SUBSTEPS: ContactCollection

class KeyboardInput(int):
    name: str
    value: int
    def __init__(self, value: int) -> None: ...
    KEY_A: KeyboardInput
    KEY_B: KeyboardInput
    KEY_C: KeyboardInput
    KEY_D: KeyboardInput
    KEY_E: KeyboardInput
    KEY_F: KeyboardInput
    KEY_G: KeyboardInput
    KEY_H: KeyboardInput
    KEY_I: KeyboardInput
    KEY_J: KeyboardInput
    KEY_K: KeyboardInput
    KEY_L: KeyboardInput
    KEY_M: KeyboardInput
    KEY_N: KeyboardInput
    KEY_O: KeyboardInput
    KEY_P: KeyboardInput
    KEY_Q: KeyboardInput
    KEY_R: KeyboardInput
    KEY_S: KeyboardInput
    KEY_T: KeyboardInput
    KEY_U: KeyboardInput
    KEY_V: KeyboardInput
    KEY_W: KeyboardInput
    KEY_X: KeyboardInput
    KEY_Y: KeyboardInput
    KEY_Z: KeyboardInput
    KEY_0: KeyboardInput
    KEY_1: KeyboardInput
    KEY_2: KeyboardInput
    KEY_3: KeyboardInput
    KEY_4: KeyboardInput
    KEY_5: KeyboardInput
    KEY_6: KeyboardInput
    KEY_7: KeyboardInput
    KEY_8: KeyboardInput
    KEY_9: KeyboardInput
    KEY_SPACE: KeyboardInput
    KEY_ESCAPE: KeyboardInput
    KEY_ENTER: KeyboardInput
    KEY_TAB: KeyboardInput
    KEY_UP: KeyboardInput
    KEY_DOWN: KeyboardInput
    KEY_LEFT: KeyboardInput
    KEY_RIGHT: KeyboardInput
    KEY_LEFT_SHIFT: KeyboardInput
    KEY_LEFT_CONTROL: KeyboardInput
    KEY_LEFT_ALT: KeyboardInput
    KEY_BACKSPACE: KeyboardInput

class MouseInput(int):
    name: str
    value: int
    def __init__(self, value: int) -> None: ...
    MOUSE_LEFT_BUTTON: MouseInput
    MOUSE_RIGHT_BUTTON: MouseInput
    MOUSE_MIDDLE_BUTTON: MouseInput
    MOUSE_MOVE_LEFT: MouseInput
    MOUSE_MOVE_RIGHT: MouseInput
    MOUSE_MOVE_UP: MouseInput
    MOUSE_MOVE_DOWN: MouseInput
    MOUSE_SCROLL_UP: MouseInput
    MOUSE_SCROLL_DOWN: MouseInput

SIM_PHYSX: SimType
SIM_FLEX: SimType
UP_AXIS_Y: UpAxis
UP_AXIS_Z: UpAxis
DOF_MODE_NONE: DofDriveMode
DOF_MODE_POS: DofDriveMode
DOF_MODE_VEL: DofDriveMode
DOF_MODE_EFFORT: DofDriveMode
DOF_INVALID: DofType
DOF_ROTATION: DofType
DOF_TRANSLATION: DofType
DOMAIN_ACTOR: IndexDomain
DOMAIN_ENV: IndexDomain
DOMAIN_SIM: IndexDomain
ENV_SPACE: CoordinateSpace
LOCAL_SPACE: CoordinateSpace
GLOBAL_SPACE: CoordinateSpace
MESH_NONE: MeshType
MESH_COLLISION: MeshType
MESH_VISUAL: MeshType
MESH_VISUAL_AND_COLLISION: MeshType
COMPUTE_PER_VERTEX: MeshNormalMode
COMPUTE_PER_FACE: MeshNormalMode
IMAGE_COLOR: ImageType
IMAGE_DEPTH: ImageType
IMAGE_SEGMENTATION: ImageType
IMAGE_OPTICAL_FLOW: ImageType
CC_NEVER: ContactCollection
CC_LAST_SUBSTEP: ContactCollection
CC_ALL_SUBSTEPS: ContactCollection
KEY_A: KeyboardInput
KEY_B: KeyboardInput
KEY_C: KeyboardInput
KEY_D: KeyboardInput
KEY_E: KeyboardInput
KEY_F: KeyboardInput
KEY_G: KeyboardInput
KEY_H: KeyboardInput
KEY_I: KeyboardInput
KEY_J: KeyboardInput
KEY_K: KeyboardInput
KEY_L: KeyboardInput
KEY_M: KeyboardInput
KEY_N: KeyboardInput
KEY_O: KeyboardInput
KEY_P: KeyboardInput
KEY_Q: KeyboardInput
KEY_R: KeyboardInput
KEY_S: KeyboardInput
KEY_T: KeyboardInput
KEY_U: KeyboardInput
KEY_V: KeyboardInput
KEY_W: KeyboardInput
KEY_X: KeyboardInput
KEY_Y: KeyboardInput
KEY_Z: KeyboardInput
KEY_0: KeyboardInput
KEY_1: KeyboardInput
KEY_2: KeyboardInput
KEY_3: KeyboardInput
KEY_4: KeyboardInput
KEY_5: KeyboardInput
KEY_6: KeyboardInput
KEY_7: KeyboardInput
KEY_8: KeyboardInput
KEY_9: KeyboardInput
KEY_SPACE: KeyboardInput
KEY_ESCAPE: KeyboardInput
KEY_ENTER: KeyboardInput
KEY_TAB: KeyboardInput
KEY_UP: KeyboardInput
KEY_DOWN: KeyboardInput
KEY_LEFT: KeyboardInput
KEY_RIGHT: KeyboardInput
KEY_LEFT_SHIFT: KeyboardInput
KEY_LEFT_CONTROL: KeyboardInput
KEY_LEFT_ALT: KeyboardInput
KEY_BACKSPACE: KeyboardInput
MOUSE_LEFT_BUTTON: MouseInput
MOUSE_RIGHT_BUTTON: MouseInput
MOUSE_MIDDLE_BUTTON: MouseInput
MOUSE_MOVE_LEFT: MouseInput
MOUSE_MOVE_RIGHT: MouseInput
MOUSE_MOVE_UP: MouseInput
MOUSE_MOVE_DOWN: MouseInput
MOUSE_SCROLL_UP: MouseInput
MOUSE_SCROLL_DOWN: MouseInput
AXIS_NONE: int
AXIS_X: int
AXIS_Y: int
AXIS_Z: int
AXIS_TWIST: int
AXIS_SWING_1: int
AXIS_SWING_2: int
AXIS_TRANSLATION: int
AXIS_ROTATION: int
AXIS_ALL: int
STATE_NONE: int
STATE_POS: int
STATE_VEL: int
STATE_ALL: int
INVALID_HANDLE: int
DEFAULT_VIEWER_WIDTH: int
DEFAULT_VIEWER_HEIGHT: int

class PhysXParams:
    solver_type: int
    num_position_iterations: int
    num_velocity_iterations: int
    num_threads: int
    num_subscenes: int
    contact_offset: float
    rest_offset: float
    bounce_threshold_velocity: float
    max_depenetration_velocity: float
    default_buffer_size_multiplier: float
    friction_offset_threshold: float
    friction_correlation_distance: float
    max_gpu_contact_pairs: int
    contact_collection: ContactCollection
    use_gpu: bool
    always_use_articulations: bool
    def __init__(self) -> None: ...

class FlexParams:
    solver_type: int
    num_outer_iterations: int
    num_inner_iterations: int
    relaxation: float
    warm_start: float
    shape_collision_margin: float
    shape_collision_distance: float
    contact_regularization: float
    deterministic_mode: bool
    friction_mode: int
    geometric_stiffness: float
    dynamic_friction: float
    static_friction: float
    particle_friction: float
    return_contacts: bool
    max_rigid_contacts: int
    max_soft_contacts: int
    def __init__(self) -> None: ...

class SimParams:
    dt: float
    substeps: int
    gravity: Vec3
    up_axis: int
    use_gpu_pipeline: bool
    num_client_threads: int
    enable_actor_creation_warning: bool
    stress_visualization: bool
    stress_visualization_min: float
    stress_visualization_max: float
    physx: PhysXParams
    flex: FlexParams
    def __init__(self) -> None: ...

class VhacdParams:
    resolution: int
    concavity: float
    alpha: float
    beta: float
    min_volume_per_ch: float
    max_num_vertices_per_ch: int
    max_convex_hulls: int
    convex_hull_downsampling: int
    plane_downsampling: int
    project_hull_vertices: bool
    mode: int
    pca: int
    ocl_acceleration: bool
    def __init__(self) -> None: ...

class AssetOptions:
    fix_base_link: bool
    collapse_fixed_joints: bool
    disable_gravity: bool
    default_dof_drive_mode: int
    flip_visual_attachments: bool
    replace_cylinder_with_capsule: bool
    override_com: bool
    override_inertia: bool
    use_mesh_materials: bool
    mesh_normal_mode: int
    use_physx_armature: bool
    enable_gyroscopic_forces: bool
    vhacd_enabled: bool
    vhacd_params: VhacdParams
    convex_decomposition_from_submeshes: bool
    density: float
    armature: float
    thickness: float
    angular_damping: float
    linear_damping: float
    max_angular_velocity: float
    max_linear_velocity: float
    min_particle_mass: float
    slices_per_cylinder: int
    tendon_limit_stiffness: float
    def __init__(self) -> None: ...

class PlaneParams:
    normal: Vec3
    distance: float
    static_friction: float
    dynamic_friction: float
    restitution: float
    segmentation_id: int
    def __init__(self) -> None: ...

class TriangleMeshParams:
    transform: Transform
    nb_vertices: int
    nb_triangles: int
    static_friction: float
    dynamic_friction: float
    restitution: float
    segmentation_id: int
    def __init__(self) -> None: ...

class HeightFieldParams:
    transform: Transform
    nbRows: int
    nbColumns: int
    row_scale: float
    column_scale: float
    vertical_scale: float
    static_friction: float
    dynamic_friction: float
    restitution: float
    segmentation_id: int
    def __init__(self) -> None: ...

class CameraProperties:
    width: int
    height: int
    horizontal_fov: float
    near_plane: float
    far_plane: float
    enable_tensors: bool
    use_collision_geometry: bool
    supersampling_horizontal: int
    supersampling_vertical: int
    def __init__(self) -> None: ...

class AttractorProperties:
    rigid_handle: int
    axes: int
    stiffness: float
    damping: float
    target: Transform
    offset: Transform
    def __init__(self) -> None: ...

class RigidBodyProperties:
    mass: float
    com: Vec3
    inertia: Any
    invMass: float
    invInertia: Any
    flags: int
    def __init__(self) -> None: ...

class RigidShapeProperties:
    friction: float
    rolling_friction: float
    torsion_friction: float
    restitution: float
    compliance: float
    thickness: float
    contact_offset: float
    rest_offset: float
    filter: int
    def __init__(self) -> None: ...

class ActuatorProperties:
    kp: float
    kv: float
    motor_effort: float
    lower_force_limit: float
    upper_force_limit: float
    control_limited: bool
    type: int
    def __init__(self) -> None: ...

class TendonProperties:
    stiffness: float
    damping: float
    fixed_spring_coef: float
    limit_stiffness: float
    is_fixed: bool
    num_attachments: int
    num_joints: int
    def __init__(self) -> None: ...

class ForceSensorProperties:
    enable_forward_dynamics_forces: bool
    enable_constraint_solver_forces: bool
    use_world_frame: bool
    def __init__(self) -> None: ...

class ActionEvent:
    action: str
    value: float
    def __init__(self) -> None: ...

class UsdExportOptions:
    export_physics: bool
    single_file: bool
    def __init__(self) -> None: ...

class Gym:
    def acquire_actor_root_state_tensor(self, sim: Sim) -> Tensor: ...
    def refresh_actor_root_state_tensor(self, sim: Sim) -> bool: ...
    def acquire_dof_state_tensor(self, sim: Sim) -> Tensor: ...
    def refresh_dof_state_tensor(self, sim: Sim) -> bool: ...
    def acquire_rigid_body_state_tensor(self, sim: Sim) -> Tensor: ...
    def refresh_rigid_body_state_tensor(self, sim: Sim) -> bool: ...
    def acquire_dof_force_tensor(self, sim: Sim) -> Tensor: ...
    def refresh_dof_force_tensor(self, sim: Sim) -> bool: ...
    def acquire_force_sensor_tensor(self, sim: Sim) -> Tensor: ...
    def refresh_force_sensor_tensor(self, sim: Sim) -> bool: ...
    def acquire_net_contact_force_tensor(self, sim: Sim) -> Tensor: ...
    def refresh_net_contact_force_tensor(self, sim: Sim) -> bool: ...
    def set_actor_root_state_tensor(self, sim: Sim, tensor: Tensor) -> bool: ...
    def set_actor_root_state_tensor_indexed(self, sim: Sim, tensor: Tensor, indices: Tensor, count: int) -> bool: ...
    def set_dof_state_tensor(self, sim: Sim, tensor: Tensor) -> bool: ...
    def set_dof_state_tensor_indexed(self, sim: Sim, tensor: Tensor, indices: Tensor, count: int) -> bool: ...
    def set_dof_position_target_tensor(self, sim: Sim, tensor: Tensor) -> bool: ...
    def set_dof_position_target_tensor_indexed(self, sim: Sim, tensor: Tensor, indices: Tensor, count: int) -> bool: ...
    def set_dof_velocity_target_tensor(self, sim: Sim, tensor: Tensor) -> bool: ...
    def set_dof_velocity_target_tensor_indexed(self, sim: Sim, tensor: Tensor, indices: Tensor, count: int) -> bool: ...
    def set_dof_actuation_force_tensor(self, sim: Sim, tensor: Tensor) -> bool: ...
    def set_dof_actuation_force_tensor_indexed(self, sim: Sim, tensor: Tensor, indices: Tensor, count: int) -> bool: ...
    def acquire_jacobian_tensor(self, sim: Sim, name: str) -> Tensor: ...
    def acquire_mass_matrix_tensor(self, sim: Sim, name: str) -> Tensor: ...
    def refresh_jacobian_tensors(self, sim: Sim) -> bool: ...
    def refresh_mass_matrix_tensors(self, sim: Sim) -> bool: ...
    def apply_rigid_body_force_tensors(
        self, sim: Sim, force_tensor: Tensor | None, torque_tensor: Tensor | None, space: CoordinateSpace = ...
    ) -> bool: ...
    def initialize(self) -> bool: ...
    def create_sim(
        self, compute_device: int = ..., graphics_device: int = ..., type: SimType = ..., params: SimParams = ...
    ) -> Sim | None: ...
    def prepare_sim(self, sim: Sim) -> bool: ...
    def simulate(self, sim: Sim) -> None: ...
    def fetch_results(self, sim: Sim, wait_for_latest_sim_step: bool) -> None: ...
    def step_graphics(self, sim: Sim) -> None: ...
    def sync_frame_time(self, sim: Sim) -> None: ...
    def destroy_sim(self, sim: Sim) -> None: ...
    def destroy_env(self, env: Env) -> None: ...
    def destroy_viewer(self, viewer: Viewer) -> None: ...
    def get_sim_params(self, sim: Sim) -> SimParams: ...
    def set_sim_params(self, sim: Sim, params: SimParams) -> None: ...
    def get_sim_actor_count(self, sim: Sim) -> int: ...
    def get_sim_dof_count(self, sim: Sim) -> int: ...
    def get_sim_rigid_body_count(self, sim: Sim) -> int: ...
    def get_frame_count(self, sim: Sim) -> int: ...
    def get_sim_time(self, sim: Sim) -> float: ...
    def get_elapsed_time(self, sim: Sim) -> float: ...
    def add_ground(self, sim: Sim, params: PlaneParams) -> None: ...
    def add_triangle_mesh(
        self, sim: Sim, vertices: NDArray[Any], triangles: NDArray[Any], params: TriangleMeshParams
    ) -> None: ...
    def add_heightfield(self, sim: Sim, heightsamples: NDArray[Any], params: HeightFieldParams) -> None: ...
    def load_asset(self, sim: Sim, rootpath: str, filename: str, options: AssetOptions = ...) -> Asset: ...
    def create_box(self, sim: Sim, width: float, height: float, depth: float, options: AssetOptions = ...) -> Asset: ...
    def create_sphere(self, sim: Sim, radius: float, options: AssetOptions = ...) -> Asset: ...
    def create_capsule(self, sim: Sim, radius: float, length: float, options: AssetOptions = ...) -> Asset: ...
    def debug_print_asset(self, asset: Asset) -> None: ...
    def get_asset_actuator_count(self, asset: Asset) -> int: ...
    def get_asset_actuator_joint_name(self, asset: Asset, index: int) -> str: ...
    def get_asset_actuator_name(self, asset: Asset, index: int) -> str: ...
    def get_asset_actuator_properties(self, asset: Asset) -> list[ActuatorProperties]: ...
    def get_asset_dof_count(self, asset: Asset) -> int: ...
    def get_asset_dof_names(self, asset: Asset) -> list[str]: ...
    def get_asset_dof_name(self, asset: Asset, index: int) -> str: ...
    def get_asset_dof_type(self, asset: Asset, index: int) -> DofType: ...
    def get_asset_dof_properties(self, asset: Asset) -> NDArray[Any]: ...
    def get_asset_joint_count(self, asset: Asset) -> int: ...
    def get_asset_joint_names(self, asset: Asset) -> list[str]: ...
    def get_asset_rigid_body_count(self, asset: Asset) -> int: ...
    def get_asset_rigid_body_dict(self, asset: Asset) -> dict[str, int]: ...
    def get_asset_rigid_body_name(self, asset: Asset, index: int) -> str: ...
    def get_asset_rigid_body_names(self, asset: Asset) -> list[str]: ...
    def get_asset_rigid_shape_count(self, asset: Asset) -> int: ...
    def get_asset_rigid_shape_properties(self, asset: Asset) -> list[RigidShapeProperties]: ...
    def set_asset_rigid_shape_properties(self, asset: Asset, props: Sequence[RigidShapeProperties]) -> bool: ...
    def get_asset_tendon_count(self, asset: Asset) -> int: ...
    def get_asset_tendon_name(self, asset: Asset, index: int) -> str: ...
    def get_asset_tendon_properties(self, asset: Asset) -> list[TendonProperties]: ...
    def set_asset_tendon_properties(self, asset: Asset, props: Sequence[TendonProperties]) -> bool: ...
    def find_asset_dof_index(self, asset: Asset, name: str) -> int: ...
    def find_asset_rigid_body_index(self, asset: Asset, name: str) -> int: ...
    def create_asset_force_sensor(
        self, asset: Asset, body_index: int, local_pose: Transform, props: ForceSensorProperties = ...
    ) -> int: ...
    def create_env(self, sim: Sim, lower: Vec3, upper: Vec3, num_per_row: int) -> Env: ...
    def get_env_origin(self, env: Env) -> Vec3: ...
    def get_env_dof_count(self, env: Env) -> int: ...
    def get_env_rigid_body_count(self, env: Env) -> int: ...
    def begin_aggregate(self, env: Env, max_bodies: int, max_shapes: int, self_collisions: bool) -> bool: ...
    def end_aggregate(self, env: Env) -> bool: ...
    def create_actor(
        self,
        env: Env,
        asset: Asset,
        pose: Transform,
        name: str = ...,
        group: int = ...,
        filter: int = ...,
        segmentationId: int = ...,
    ) -> int: ...
    def create_force_sensor(
        self, env: Env, body_handle: int, local_pose: Transform, props: ForceSensorProperties = ...
    ) -> int: ...
    def create_rigid_body_attractor(self, env: Env, props: AttractorProperties) -> int: ...
    def enable_actor_dof_force_sensors(self, env: Env, actor: int) -> bool: ...
    def find_actor_handle(self, env: Env, name: str) -> int: ...
    def find_actor_index(self, env: Env, name: str, domain: IndexDomain) -> int: ...
    def find_actor_dof_handle(self, env: Env, actor: int, name: str) -> int: ...
    def find_actor_dof_index(self, env: Env, actor: int, name: str, domain: IndexDomain) -> int: ...
    def find_actor_rigid_body_handle(self, env: Env, actor: int, name: str) -> int: ...
    def find_actor_rigid_body_index(self, env: Env, actor: int, name: str, domain: IndexDomain) -> int: ...
    def get_actor_count(self, env: Env) -> int: ...
    def get_actor_handle(self, env: Env, index: int) -> int: ...
    def get_actor_index(self, env: Env, actor: int, domain: IndexDomain) -> int: ...
    def get_actor_name(self, env: Env, actor: int) -> str: ...
    def get_actor_dof_count(self, env: Env, actor: int) -> int: ...
    def get_actor_dof_names(self, env: Env, actor: int) -> list[str]: ...
    def get_actor_dof_properties(self, env: Env, actor: int) -> NDArray[Any]: ...
    def set_actor_dof_properties(self, env: Env, actor: int, props: NDArray[Any]) -> bool: ...
    def get_actor_dof_states(self, env: Env, actor: int, flags: int) -> NDArray[Any]: ...
    def set_actor_dof_states(self, env: Env, actor: int, states: NDArray[Any], flags: int) -> bool: ...
    def get_actor_joint_dict(self, env: Env, actor: int) -> dict[str, int]: ...
    def get_actor_rigid_body_count(self, env: Env, actor: int) -> int: ...
    def get_actor_rigid_body_dict(self, env: Env, actor: int) -> dict[str, int]: ...
    def get_actor_rigid_body_names(self, env: Env, actor: int) -> list[str]: ...
    def get_actor_rigid_body_properties(self, env: Env, actor: int) -> list[RigidBodyProperties]: ...
    def set_actor_rigid_body_properties(
        self, env: Env, actor: int, props: Sequence[RigidBodyProperties], recomputeInertia: bool = ...
    ) -> bool: ...
    def get_actor_rigid_shape_count(self, env: Env, actor: int) -> int: ...
    def get_actor_rigid_shape_properties(self, env: Env, actor: int) -> list[RigidShapeProperties]: ...
    def set_actor_rigid_shape_properties(self, env: Env, actor: int, props: Sequence[RigidShapeProperties]) -> bool: ...
    def get_actor_scale(self, env: Env, actor: int) -> float: ...
    def set_actor_scale(self, env: Env, actor: int, scale: float) -> bool: ...
    def get_rigid_transform(self, env: Env, body: int) -> Transform: ...
    def set_rigid_body_color(self, env: Env, actor: int, body: int, mesh_type: MeshType, color: Vec3) -> None: ...
    def create_viewer(self, sim: Sim, props: CameraProperties) -> Viewer | None: ...
    def draw_viewer(self, viewer: Viewer, sim: Sim, render_collision: bool = ...) -> None: ...
    def poll_viewer_events(self, viewer: Viewer) -> None: ...
    def query_viewer_has_closed(self, viewer: Viewer) -> bool: ...
    def query_viewer_action_events(self, viewer: Viewer) -> list[ActionEvent]: ...
    def subscribe_viewer_keyboard_event(self, viewer: Viewer, key: KeyboardInput, action: str) -> None: ...
    def subscribe_viewer_mouse_event(self, viewer: Viewer, button: MouseInput, action: str) -> None: ...
    def viewer_camera_look_at(self, viewer: Viewer, env: Env | None, position: Vec3, target: Vec3) -> None: ...
    def get_viewer_camera_transform(self, viewer: Viewer, env: Env | None) -> Transform: ...
    def write_viewer_image_to_file(self, viewer: Viewer, filename: str) -> None: ...
    def add_lines(
        self,
        viewer: Viewer,
        env: Env | None,
        count: int,
        vertices: NDArray[Any] | Sequence[float],
        colors: NDArray[Any] | Sequence[float],
    ) -> None: ...
    def clear_lines(self, viewer: Viewer) -> None: ...
    def create_camera_sensor(self, env: Env, props: CameraProperties) -> int: ...
    def get_camera_image_gpu_tensor(self, sim: Sim, env: Env, camera: int, type: ImageType) -> Tensor: ...
    def set_camera_location(self, camera: int, env: Env, position: Vec3, target: Vec3) -> None: ...
    def render_all_camera_sensors(self, sim: Sim) -> None: ...
    def start_access_image_tensors(self, sim: Sim) -> None: ...
    def end_access_image_tensors(self, sim: Sim) -> None: ...
    def create_usd_exporter(self, options: UsdExportOptions) -> UsdExporter: ...
    def export_usd_sim(self, exporter: UsdExporter, sim: Sim, name: str) -> bool: ...

def acquire_gym(*args: Any) -> Gym: ...
