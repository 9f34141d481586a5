"""Experts of Meta-World's tasks: the scripted policies of the package itself."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import Style
from imitate.errors import EnvError, nearest
from imitate.system.extras import missing

PREFIX = "metaworld:"
INSTRUCTIONS = {
    "assembly-v3": "put the nut onto the peg",
    "basketball-v3": "put the ball into the basket",
    "bin-picking-v3": "move the object from one bin to the other",
    "box-close-v3": "put the lid onto the box",
    "button-press-topdown-v3": "press the button from above",
    "button-press-topdown-wall-v3": "press the button behind the wall from above",
    "button-press-v3": "press the button",
    "button-press-wall-v3": "press the button behind the wall",
    "coffee-button-v3": "press the button of the coffee machine",
    "coffee-pull-v3": "pull the mug away from the coffee machine",
    "coffee-push-v3": "push the mug under the coffee machine",
    "dial-turn-v3": "turn the dial",
    "disassemble-v3": "take the nut off the peg",
    "door-close-v3": "close the door",
    "door-lock-v3": "lock the door",
    "door-open-v3": "open the door",
    "door-unlock-v3": "unlock the door",
    "drawer-close-v3": "close the drawer",
    "drawer-open-v3": "open the drawer",
    "faucet-close-v3": "close the faucet",
    "faucet-open-v3": "open the faucet",
    "hammer-v3": "hammer the nail into the wall",
    "hand-insert-v3": "put the hand into the hole",
    "handle-press-side-v3": "press the handle down from the side",
    "handle-press-v3": "press the handle down",
    "handle-pull-side-v3": "pull the handle up from the side",
    "handle-pull-v3": "pull the handle up",
    "lever-pull-v3": "pull the lever",
    "peg-insert-side-v3": "insert the peg into the hole from the side",
    "peg-unplug-side-v3": "pull the peg out of the hole",
    "pick-out-of-hole-v3": "pick the object out of the hole",
    "pick-place-v3": "pick the object up and hold it at the goal",
    "pick-place-wall-v3": "carry the object over the wall to the goal",
    "plate-slide-back-side-v3": "slide the plate back out of the cabinet sideways",
    "plate-slide-back-v3": "slide the plate back out of the cabinet",
    "plate-slide-side-v3": "slide the plate into the cabinet sideways",
    "plate-slide-v3": "slide the plate into the cabinet",
    "push-back-v3": "push the object back to the goal",
    "push-v3": "push the object to the goal",
    "push-wall-v3": "push the object around the wall to the goal",
    "reach-v3": "reach the goal",
    "reach-wall-v3": "reach the goal behind the wall",
    "shelf-place-v3": "put the object onto the shelf",
    "soccer-v3": "push the ball into the goal",
    "stick-pull-v3": "pull the thermos with the stick",
    "stick-push-v3": "push the thermos with the stick",
    "sweep-into-v3": "sweep the object into the hole",
    "sweep-v3": "sweep the object off the table",
    "window-close-v3": "close the window",
    "window-open-v3": "open the window",
}
"""Instructions by task."""


class MetaWorldExpert:
    """Meta-World's policy of a task, which decides from the current observation alone.

    Args:
        policy: object with ``get_action``, which maps Meta-World's vector (39,) to an action (4,).
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def act(self, obs: Obs) -> Array:
        """Return the action (4,), clipped to the limits, which Meta-World's policies exceed far from their target."""
        now = [
            *(obs["hand_pos"], obs["gripper"], obs["object_pos"], obs["object_quat"]),
            *(obs["object2_pos"], obs["object2_quat"]),
        ]
        with warnings.catch_warnings():
            # ignore the warnings about actions beyond their limits
            warnings.simplefilter("ignore", UserWarning)
            # The policies ignore the numbers of the previous step.
            action = self._policy.get_action(np.concatenate([*now, *now, obs["goal"]]))
        return np.clip(np.asarray(action, dtype=np.float64), -1.0, 1.0)


@dataclass(frozen=True)
class MetaWorldTask:
    """Expert of a Meta-World task; see :class:`imitate.envs.experts.expert.ExpertKind`."""

    env_name: str
    instruction: str
    policy: type
    horizon: ClassVar[int] = 500
    motion_axes: ClassVar[int] = 3
    env_kwargs: ClassVar[Mapping[str, Any]] = {}
    dense_kwargs: ClassVar[Mapping[str, Any]] = {"reward_shaping": True}
    acts_as_person: ClassVar[bool] = False

    def __call__(self, style: Style) -> MetaWorldExpert:
        """Return an expert for an episode; ``style`` is ignored."""
        return MetaWorldExpert(self.policy())


def expert_of(env_name: str) -> MetaWorldTask:
    """Return the expert of ``metaworld:TASK``.

    Raises:
        EnvError: there is no such task, or the package is not installed.
    """
    task = env_name.removeprefix(PREFIX)
    if task not in INSTRUCTIONS:
        near = nearest(task, INSTRUCTIONS)
        raise EnvError(f"metaworld has no task '{task}'; {near}")
    try:
        from metaworld.policies import ENV_POLICY_MAP
    except ImportError as error:
        raise EnvError(f"{env_name}: {missing('metaworld', error)}") from error
    return MetaWorldTask(env_name, INSTRUCTIONS[task], ENV_POLICY_MAP[task])
