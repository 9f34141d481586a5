"""Draw a policy's plan and keypoints onto the frames of a video.

The planned actions are drawn as the path of each gripper if the environment can compute it (``env.planned_paths``),
otherwise as one curve per action dimension. Images with a spatial softmax are shown in the corner with its keypoints.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from imitate.policy.rollout_policy import RolloutPolicy

INSET = 80
MARGIN = 4
NEAR, FAR = (255, 230, 0), (255, 0, 120)
"""Colours of the next action and of the last planned one."""
FAINTEST = 0.35

Picture = NDArray[np.uint8]
Values = NDArray[np.float64]


class Overlay:
    """Drawer for one policy.

    Args:
        policy: policy that has just acted on the drawn observation.
    """

    def __init__(self, policy: RolloutPolicy) -> None:
        self._policy = policy

    def draw(
        self, frame: Picture, env: Any, camera_name: str | None, obs: Mapping[str, Any]
    ) -> Picture:
        """Draw the plan and the keypoints onto a copy of a frame (H, W, 3).

        Args:
            frame: camera image.
            env: environment in the shown state.
            camera_name: name of the camera.
            obs: raw observation of this state.
        """
        picture = Image.fromarray(frame)
        planned = self._policy.planned_actions()
        if planned is not None:
            draw_plan(picture, env, camera_name, without_repeats(planned[0]))
        places = self._policy.keypoints(obs)
        for number, (key, points) in enumerate(places.items()):
            image = np.asarray(obs[key])
            if image.dtype == np.uint8 and image.shape[-1] == 3:
                left = MARGIN + number * (INSET + MARGIN)
                picture.paste(inset(image, points), (left, picture.height - INSET - MARGIN))
        return np.asarray(picture)


def without_repeats(actions: Values) -> Values:
    """Remove the repeated last actions of (K, A), which fill up a shorter plan."""
    differs = (actions != actions[-1]).any(axis=1)
    last = int(differs.nonzero()[0][-1]) + 1 if differs.any() else 0
    return actions[: last + 1]


def draw_plan(picture: Image.Image, env: Any, camera_name: str | None, actions: Values) -> None:
    """Draw the grippers' path under actions (K, A), or curves of them in the upper left corner."""
    paths = []
    if hasattr(env, "planned_paths"):
        size = {"height": picture.height, "width": picture.width}
        paths = env.planned_paths(actions, **size, camera_name=camera_name)
    drawing = ImageDraw.Draw(picture, "RGBA")
    for path in paths:
        draw_path(drawing, path)
    if not paths:
        draw_curves(drawing, actions, env.action_low, env.action_high)


def draw_path(drawing: ImageDraw.ImageDraw, path: Values) -> None:
    """Draw a path of pixels (K + 1, 2), fainter towards its end."""
    count = len(path) - 1
    for number in reversed(range(count)):
        ends = path[number : number + 2]
        if np.isfinite(ends).all():
            drawing.line(ends.flatten().tolist(), fill=_colour(number / count), width=3)
    if np.isfinite(path[0]).all():
        x, y = path[0].tolist()
        drawing.ellipse((x - 3, y - 3, x + 3, y + 3), outline=(*NEAR, 255), width=2)


def _colour(share: float) -> tuple[int, int, int, int]:
    """Return the colour for a fraction of the plan, 0 to 1."""
    red, green, blue = (
        round(near + share * (far - near)) for near, far in zip(NEAR, FAR, strict=True)
    )
    return red, green, blue, round(255 * (1 - share * (1 - FAINTEST)))


def draw_curves(
    drawing: ImageDraw.ImageDraw, actions: Values, low: NDArray[Any], high: NDArray[Any]
) -> None:
    """Draw each number of the actions (K, A) over time, between its limits, in a box in the upper left corner."""
    left = top = MARGIN
    drawing.rectangle((left, top, left + INSET, top + INSET), fill=(0, 0, 0, 140))
    low = np.where(np.isfinite(low), low, actions.min(axis=0))
    high = np.where(np.isfinite(high), high, actions.max(axis=0))
    heights = (actions - low) / np.maximum(high - low, 1e-9)
    times = np.linspace(0.0, 1.0, max(len(actions), 2))
    for number, curve in enumerate(heights.T):
        curve = np.resize(curve, len(times))  # a single action is drawn as a horizontal line
        points = np.stack([left + times * INSET, top + (1 - curve) * INSET], axis=1)
        hue = colorsys.hsv_to_rgb(number / heights.shape[1], 0.7, 1.0)
        colour = tuple(round(255 * value) for value in hue)
        drawing.line(points.flatten().tolist(), fill=colour, width=1)


def inset(image: Picture, points: NDArray[Any]) -> Image.Image:
    """Scale an image (H, W, 3) to the size of insets and mark points (K, 2), given in its pixels."""
    height, width = image.shape[:2]
    picture = Image.fromarray(image).resize((INSET, INSET))
    drawing = ImageDraw.Draw(picture)
    for x, y in (np.asarray(points) + 0.5) * [INSET / width, INSET / height]:
        drawing.ellipse((x - 2, y - 2, x + 2, y + 2), fill=NEAR, outline=(0, 0, 0))
    drawing.rectangle((0, 0, INSET - 1, INSET - 1), outline=(255, 255, 255))
    return picture
