"""Conversion of actions by the steps: relative to observations, between references, and combined within a chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from imitate.errors import ConfigError
from imitate.models.action_layout import ActionLayout
from imitate.models.preprocessing.standard import Rotations
from imitate.models.preprocessing.step import Observations, PreprocessStep

Steps = Sequence[PreprocessStep]


def _forward(steps: Steps, actions: Tensor, reference: Observations) -> Tensor:
    """Convert stored actions to the networks' targets."""
    for step in steps:
        actions = step.forward_actions(actions, reference)
    return actions


def _inverse(steps: Steps, actions: Tensor, reference: Observations) -> Tensor:
    """Convert predictions to actions in their stored form."""
    for step in reversed(steps):
        actions = step.inverse_actions(actions, reference)
    return actions


def rebased_actions(
    steps: Steps, actions: Tensor, before: Observations, after: Observations
) -> Tensor:
    """Convert predictions from being relative to one reference to being relative to another."""
    # Rotations stay in their learned form, and limits apply only to what is learned, not to what is executed.
    relative = [step for step in steps if step.invertible and not isinstance(step, Rotations)]
    return _forward(relative, _inverse(relative, actions, before), after)


def through_chain(
    steps: Steps, actions: Tensor, convert: Callable[[PreprocessStep, Tensor], Tensor]
) -> Tensor:
    """Apply a conversion of the step that combines the actions of a chunk, at its place in the pipeline."""
    place = next((number for number, step in enumerate(steps) if step.chains), None)
    if place is None:
        return actions
    behind = [step for step in steps[place + 1 :] if step.invertible]
    joined = convert(steps[place], _inverse(behind, actions, {}))
    return _forward(behind, joined, {})


def check_relations(steps: Steps, actions: ActionLayout) -> None:
    """Refuse steps that lose an observation to which actions are relative, or that convert a rotation twice.

    Raises:
        ConfigError: the message names the step.
    """
    if actions.converts and any(step.rotation_limit > 1.0 for step in steps):
        raise ConfigError(
            "train.preprocess: a step expects rotations in the form of the data, but "
            "train.action_config converts one to 6d first: set the step's form to 'rotation_6d', "
            "or leave convert_at_runtime out"
        )
    chained = [number for number, step in enumerate(steps) if step.chains]
    if chained and any(step.references for step in steps[chained[0] + 1 :]):
        raise ConfigError(
            "train.preprocess: a step behind the differences between the actions of a chunk is relative to an "
            "observation; expected a single step of differences, behind all others that are relative"
        )
    for key in (key for step in steps for key in step.references):
        for step in steps:
            if not step.invertible and step.acts_on(key):
                raise ConfigError(
                    f"train.preprocess: actions are relative to observation '{key}', but step "
                    f"'{step.name or 'obs_clip'}' does not keep its values; expected only steps that do"
                )
