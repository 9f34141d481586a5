"""Cameras of robosuite scenes: colour, depth and segmentation images, and camera poses.

All images are right side up, with row 0 at the top:

* ``<camera>_image``: (H, W, 3) uint8.
* ``<camera>_depth``: (H, W, 1) float32, metres along the viewing direction (not along the ray), as stereo cameras
  measure.
* ``<camera>_segmentation``: (H, W, 1); 0 marks a pixel without a label, k the k-th of the names in :func:`camera_info`.
  ``instance`` and ``class`` are uint8 with one name per object, robot, gripper; ``element`` is int32, one per geom.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.errors import EnvError, nearest

DEFAULT_SIZE = 84
SEGMENTATIONS = ("instance", "class", "element")
IMAGE, DEPTH, SEGMENTATION = "_image", "_depth", "_segmentation"
_SUFFIXES = (IMAGE, DEPTH, SEGMENTATION)

Size = int | tuple[int, int]
"""Size of images in pixels: the side of a square, or (height, width)."""


@dataclass(frozen=True)
class Camera:
    """Observations of one camera of a scene.

    Attributes:
        name: name of the camera in the scene.
        height: height of the images in pixels.
        width: width of the images in pixels.
        depth: true if depth is observed.
        segmentation: one of :data:`SEGMENTATIONS`, or None.
    """

    name: str
    height: int = DEFAULT_SIZE
    width: int = DEFAULT_SIZE
    depth: bool = False
    segmentation: str | None = None

    @property
    def keys(self) -> list[str]:
        """Observation keys of the camera."""
        wanted = (True, self.depth, self.segmentation is not None)
        return [
            self.name + suffix
            for suffix, is_wanted in zip(_SUFFIXES, wanted, strict=True)
            if is_wanted
        ]


def choose_cameras(
    env_kwargs: Mapping[str, Any],
    names: Sequence[str] | None = None,
    size: Size | Mapping[str, Size] | None = None,
    obs_keys: Iterable[str] | None = None,
) -> tuple[Camera, ...]:
    """Return the cameras to observe.

    Args:
        env_kwargs: arguments from a demonstration file. Its ``camera_heights``, ``camera_widths``, ``camera_depths``
            and ``camera_segmentations``, either one value or one for each of its ``camera_names``, are used unless
            other arguments replace them.
        names: names of the cameras; None takes the cameras that ``obs_keys`` require.
        size: size of all images, or sizes by camera.
        obs_keys: required observations; depth and segmentation are rendered if they are among them.
    """
    keys = list(obs_keys or ())
    if names is None:
        names = cameras_in(keys)
    recorded = _recorded(env_kwargs)
    chosen = []
    for name in dict.fromkeys(names):
        camera = recorded.get(name) or _recorded({**env_kwargs, "camera_names": name})[name]
        given = size.get(name) if isinstance(size, Mapping) else size
        height, width = (camera.height, camera.width) if given is None else _pair(given)
        segmentation = camera.segmentation
        if name + SEGMENTATION in keys:
            segmentation = segmentation or SEGMENTATIONS[0]
        depth = camera.depth or name + DEPTH in keys
        chosen.append(Camera(name, height, width, depth, segmentation))
    return tuple(chosen)


def cameras_in(keys: Iterable[str]) -> list[str]:
    """Return the names of the cameras in observation keys such as ``agentview_image``."""
    named = (key[: -len(end)] for key in keys for end in _SUFFIXES if key.endswith(end))
    return list(dict.fromkeys(named))


def sizes_of(shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, int]]:
    """Return (height, width) by camera, from the shapes (H, W, C) of image observations; other keys are ignored."""
    return {
        key[: -len(end)]: (int(shape[0]), int(shape[1]))
        for key, shape in shapes.items()
        for end in _SUFFIXES
        if key.endswith(end) and len(shape) == 3
    }


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _recorded(env_kwargs: Mapping[str, Any]) -> dict[str, Camera]:
    """Return the cameras that arguments of ``robosuite.make`` describe, by name."""
    names = env_kwargs.get("camera_names") or []
    names = [names] if isinstance(names, str) else list(names)

    def each(key: str, default: Any) -> list[Any]:
        value = env_kwargs.get(key)
        if isinstance(value, list | tuple) and len(value) == len(names):
            return list(value)
        if isinstance(value, list | tuple):
            value = value[0] if value else None
        return [default if value is None else value] * len(names)

    columns = (
        names,
        each("camera_heights", DEFAULT_SIZE),
        each("camera_widths", DEFAULT_SIZE),
        each("camera_depths", False),
        each("camera_segmentations", None),
    )
    return {
        name: Camera(name, int(height), int(width), bool(depth), _one(segmentation))
        for name, height, width, depth, segmentation in zip(*columns, strict=True)
    }


def _one(segmentation: Any) -> str | None:
    """Return the kind of a camera's segmentation, the first if robosuite's arguments list several; None without one."""
    if isinstance(segmentation, list | tuple):
        segmentation = segmentation[0] if segmentation else None
    if segmentation is not None and segmentation not in SEGMENTATIONS:
        raise EnvError(
            f"camera_segmentations: '{segmentation}' is unknown; {nearest(str(segmentation), SEGMENTATIONS)}"
        )
    return None if segmentation is None else str(segmentation)


def camera_kwargs(cameras: Sequence[Camera]) -> dict[str, Any]:
    """Return the cameras in the form of ``robosuite.make``'s arguments, as stored in the ``env_args`` of a file."""

    def together(values: Sequence[Any]) -> Any:
        return values[0] if len(set(values)) == 1 else list(values)

    kwargs = {
        "camera_names": [camera.name for camera in cameras],
        "camera_heights": together([camera.height for camera in cameras]),
        "camera_widths": together([camera.width for camera in cameras]),
        "camera_depths": together([camera.depth for camera in cameras]),
    }
    if any(camera.segmentation for camera in cameras):
        kwargs["camera_segmentations"] = together([camera.segmentation for camera in cameras])
    return kwargs


# ---- pictures ------------------------------------------------------------------------------------


def check_camera(env: Any, name: str) -> None:
    """Raise EnvError if the scene of a robosuite environment has no camera of this name."""
    known = list(env.sim.model.camera_names)
    if name not in known:
        raise EnvError(f"{type(env).__name__}: no camera '{name}'; {nearest(name, known)}")


def observe(env: Any, camera: Camera) -> Obs:
    """Render a camera of a robosuite environment; return its observations by the keys of :attr:`Camera.keys`."""
    check_camera(env, camera.name)
    env.sim._render_context_offscreen.gl_ctx.make_current()  # another context may be current
    view = {"height": camera.height, "width": camera.width, "camera_name": camera.name}
    obs: Obs = {}
    if camera.depth:
        image, z_buffer = env.sim.render(**view, depth=True)
        obs[camera.name + DEPTH] = _upright(_metres(env, z_buffer)[..., None])
    else:
        image = env.sim.render(**view)
    obs[camera.name + IMAGE] = _upright(image)
    if camera.segmentation is not None:
        labels, _ = _labels(env, camera.segmentation)
        obs[camera.name + SEGMENTATION] = _upright(labels[_geoms(env, view)][..., None])
    return {key: obs[key] for key in camera.keys}


_GEOM = 5  # mujoco.mjtObj.mjOBJ_GEOM


def _geoms(env: Any, view: dict[str, Any]) -> Array:
    """Return the index of the visible geom at each pixel (H, W), -1 where there is no geom.

    Sites, such as the line below a gripper, are hidden: images do not show them, but they would cover the geoms behind.
    """
    sites = env.sim._render_context_offscreen.vopt.sitegroup
    shown = sites.copy()
    sites[:] = 0
    try:
        seen = env.sim.render(**view, segmentation=True)
    finally:
        sites[:] = shown
    geoms: Array = np.where(seen[..., 0] == _GEOM, seen[..., 1], -1)
    return geoms


def _upright(image: Array) -> Array:
    return np.ascontiguousarray(image[::-1])


def _metres(env: Any, z_buffer: Array) -> Array:
    """Convert a z-buffer (0 is the near plane, 1 the far plane) to metres."""
    model = env.sim.model
    near, far = (model.stat.extent * plane for plane in (model.vis.map.znear, model.vis.map.zfar))
    depth: Array = near / (1.0 - z_buffer * (1.0 - near / far))
    return depth.astype(np.float32)


def _labels(env: Any, kind: str) -> tuple[Array, list[str]]:
    """Return the label of each geom, followed by 0 for pixels without a geom, and the names of labels 1, 2 ..."""
    geoms = list(env.sim.model.geom_names)
    if kind == "element":
        names = [name or f"geom {number}" for number, name in enumerate(geoms)]
        return np.array([*range(1, len(geoms) + 1), 0], dtype=np.int32), names
    model = env.model
    by_geom, groups = (
        (model.geom_ids_to_instances, model.instances_to_ids)
        if kind == "instance"
        else (model.geom_ids_to_classes, model.classes_to_ids)
    )
    names = list(groups)
    if len(names) > np.iinfo(np.uint8).max:
        raise EnvError(
            f"{type(env).__name__}: {len(names)} {kind} labels do not fit into uint8; use 'element'"
        )
    labels = np.zeros(len(geoms) + 1, dtype=np.uint8)
    for geom, name in by_geom.items():
        labels[geom] = names.index(name) + 1
    return labels, names


def free_renderer(env: Any) -> None:
    """Free the renderer of a robosuite environment's current scene before the scene is replaced.

    A reset of robosuite drops the old scene, but Python deletes it later. That would free OpenGL objects of the new
    scene, which have the same names, and its images would become noise.
    """
    context = None if env.sim is None else env.sim._render_context_offscreen
    if context is not None:
        context.gl_ctx.make_current()
        env.sim._render_context_offscreen = None  # drop robosuite's own reference to the renderer


# ---- geometry ------------------------------------------------------------------------------------


def camera_info(env: Any, camera: Camera) -> dict[str, Any]:
    """Return the pose and projection of a camera as plain lists, for JSON.

    * ``intrinsics``: 3 x 3 in pixels; the corner of the image is (0, 0), the centre of its first pixel (0.5, 0.5).
    * ``extrinsics``: 4 x 4 pose of the camera (x right, y down, z forward) in ``frame``.
    * ``frame``: ``world``, or the body that carries the camera.
    * ``segmentation``: the names of labels 1, 2 ..., if the camera's segmentation is observed.
    """
    check_camera(env, camera.name)
    model, data = env.sim.model, env.sim.data
    pose, body = _pose(env, camera), int(model.cam_bodyid[model.camera_name2id(camera.name)])
    frame = "world"
    if model.body_weldid[body] != 0:
        frame = model.body_id2name(body)
        carrier = np.eye(4)
        carrier[:3, :3], carrier[:3, 3] = data.body_xmat[body].reshape(3, 3), data.body_xpos[body]
        pose = np.linalg.inv(carrier) @ pose
    info: dict[str, Any] = {
        "intrinsics": _intrinsics(env, camera).tolist(),
        "extrinsics": pose.tolist(),
        "frame": frame,
    }
    if camera.segmentation is not None:
        info["segmentation"] = _labels(env, camera.segmentation)[1]
    return info


def project(env: Any, camera: Camera, points: Array) -> Array:
    """Project points (N, 3) of the world into a camera's image: (N, 2) x and y in pixels, NaN behind the camera."""
    check_camera(env, camera.name)
    pose = _pose(env, camera)
    seen = (points - pose[:3, 3]) @ pose[:3, :3]
    depth = np.where(seen[:, 2:] > 0, seen[:, 2:], np.nan)
    pixels: Array = (seen / depth) @ _intrinsics(env, camera)[:2].T
    return pixels


def _intrinsics(env: Any, camera: Camera) -> Array:
    index = env.sim.model.camera_name2id(camera.name)
    angle = math.radians(env.sim.model.cam_fovy[index])
    focal = 0.5 * camera.height / math.tan(angle / 2)
    return np.array(
        [[focal, 0.0, camera.width / 2], [0.0, focal, camera.height / 2], [0.0, 0.0, 1.0]]
    )


def _pose(env: Any, camera: Camera) -> Array:
    """Return the 4 x 4 pose of a camera in the world: x right, y down, z forward."""
    index = env.sim.model.camera_name2id(camera.name)
    pose = np.eye(4)
    pose[:3, :3] = env.sim.data.cam_xmat[index].reshape(3, 3) * [1.0, -1.0, -1.0]
    pose[:3, 3] = env.sim.data.cam_xpos[index]
    return pose
