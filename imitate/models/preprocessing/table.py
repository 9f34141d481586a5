"""Preprocessing steps by name: the built-in ones, and entry points of other packages in ``imitate.preprocess``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imitate.errors import ConfigError, nearest
from imitate.models.options import arguments, chosen_or_installed
from imitate.models.preprocessing.binary import BinaryActions
from imitate.models.preprocessing.images import Resize
from imitate.models.preprocessing.pad import Pad
from imitate.models.preprocessing.relative import DeltaActions, RelativeActions
from imitate.models.preprocessing.rotations import (
    ObservedRotation6d,
    RelativePose,
    Rotation6d,
    SinCos,
)
from imitate.models.preprocessing.standard import Clip
from imitate.models.preprocessing.step import PreprocessStep
from imitate.models.preprocessing.tokens import HashTokens

ENTRY_POINTS = "imitate.preprocess"
NORMALIZE = "normalize"
"""Name that marks the place of the normalization in a list of steps."""

STEPS: dict[str, type[PreprocessStep]] = {
    "binary_actions": BinaryActions,
    "clip": Clip,
    "delta_actions": DeltaActions,
    "observed_rotation_6d": ObservedRotation6d,
    "pad": Pad,
    "relative_actions": RelativeActions,
    "relative_pose": RelativePose,
    "resize": Resize,
    "rotation_6d": Rotation6d,
    "sin_cos": SinCos,
    "tokenize": HashTokens,
}


def make_step(entry: Mapping[str, Any], place: str = "train.preprocess") -> PreprocessStep:
    """Make the step that an entry of the configuration describes.

    Args:
        entry: the name under ``step``, and the options of the step.
        place: dotted key of the entry, for messages.

    Raises:
        ConfigError: there is no step of this name, it does not have an option, or a required option is missing.
    """
    options = {key: value for key, value in entry.items() if key != "step"}
    name = str(entry.get("step", ""))
    kind = chosen_or_installed(STEPS, name, f"{place}.step", ENTRY_POINTS)
    known = arguments(kind)
    for key in options:
        if key not in known:
            raise ConfigError(
                f"{place}.{key}: step '{name}' has no such key; {nearest(key, known)}"
            )
    try:
        step = kind(**options)
    except TypeError as error:
        raise ConfigError(f"{place}: step '{name}' cannot be made: {error}") from error
    if not isinstance(step, PreprocessStep):
        raise ConfigError(
            f"{place}: step '{name}' is a {type(step).__name__}; expected a class derived from PreprocessStep"
        )
    step.name, step.options = name, options
    return step


def make_steps(
    entries: Sequence[Mapping[str, Any]],
) -> tuple[list[PreprocessStep], list[PreprocessStep]]:
    """Make the steps before the normalization, and the steps after it.

    The normalization is at the entry ``{"step": "normalize"}``; without this entry it is before the first step that
    must follow it, or at the end.

    Raises:
        ConfigError: an entry cannot be made, or is on the wrong side of the normalization.
    """
    before: list[PreprocessStep] = []
    after: list[PreprocessStep] = []
    marked = any(entry.get("step") == NORMALIZE for entry in entries)
    passed = False
    for number, entry in enumerate(entries):
        place = f"train.preprocess.{number}"
        if entry.get("step") == NORMALIZE:
            if passed or len(entry) > 1:
                raise ConfigError(
                    f'{place}: expected {{"step": "normalize"}} once, without other keys: it marks the place of '
                    "train.obs_normalization and train.action_config"
                )
            passed = True
            continue
        step = make_step(entry, place)
        passed = passed or (step.side == "after" and not marked)
        if step.side == ("before" if passed else "after"):
            raise ConfigError(
                f"{place}: step '{step.name}' is {'behind' if passed else 'before'} the normalization; expected it "
                f"{'before' if passed else 'behind'} the entry 'normalize'"
            )
        (after if passed else before).append(step)
    return before, after
