"""What the keys of a configuration mean, and where robomimic did otherwise under the same key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from imitate.config.config import Config
from imitate.config.schema import Key, keys

DIFFERENCES: tuple[tuple[str, str], ...] = (
    ("algo.unet.*", "ignored: its U-Net has always 256, 512 and 1024 channels; heeded here"),
    ("train.max_grad_norm", "heeded by BC only; here by every algorithm"),
    (
        "*.vae.decoder.is_conditioned",
        "ignored: the decoder always sees the observation; heeded here",
    ),
    (
        "algo.dd*m.prediction_type",
        "learns the noise whatever this says; here what it says is learned",
    ),
    (
        "*.learning_rate.*",
        "its schedules also move during validation; here in training alone",
    ),
    (
        "experiment.additional_envs",
        "only the last one was evaluated; here all are",
    ),
    (
        "experiment.validate",
        "the validation loss of stochastic policies was that of acting, with noise 1e-4; here it has the learned noise",
    ),
    ("experiment.keep_all_videos", "ignored; heeded here"),
    (
        "experiment.rollout.*",
        "episodes are not seeded there; here they are (experiment.rollout.seed)",
    ),
    (
        "train.hdf5_cache_mode",
        "'all' keeps every overlapping window in RAM; here data are never held twice, whatever this says",
    ),
    (
        "train.action_config.*",
        "validation data are normalized by their own statistics; here by those of the training data",
    ),
    (
        "train.hdf5_normalize_obs",
        "standard deviations are raised by 0.001; here not below 0.01. Imported policies keep their own",
    ),
    ("train.pad_seq_length", "padded steps are learned from; here they are left out of the loss"),
    (
        "train.frame_stack",
        "networks without memory learn from the oldest frame only; here from all",
    ),
    (
        "algo.transformer.pred_future_acs",
        "acts on the oldest observation of the window; here on the newest (algo.transformer.causal true: as there)",
    ),
    (
        "algo.rnn.kwargs.bidirectional",
        "accepted; here refused, since a policy cannot see the future",
    ),
    (
        "algo.subgoal_update_interval",
        "the actor of hbc and iris sees no subgoal; here it does",
    ),
    (
        "algo.critic.distributional.*",
        "projects the target to two atoms; here to all of them",
    ),
    (
        "observation.encoder.*.obs_randomizer_class",
        "GaussianNoiseRandomizer adds uniform noise in [0, 1), crops never reach the last row and column; mended here",
    ),
    (
        "observation.encoder.*.core_kwargs.backbone_kwargs.pretrained",
        "pretrained trunks see colours in [0, 1]; here as they were trained, unless imagenet_normalization is false",
    ),
    (
        "observation.encoder.*.core_kwargs.backbone_kwargs.output_channel",
        "ignored by ShallowConv; heeded here",
    ),
    (
        "algo.ema.*",
        "the count of updates is not saved, so that resuming overwrites the average; saved here",
    ),
)
"""Keys, with ``*`` for any characters, and what robomimic does under them."""


class Explanation(NamedTuple):
    """One key that a file sets: its value, what it means here, what robomimic does otherwise ('' for nothing)."""

    path: str
    value: Any
    meaning: str
    robomimic: str


def explain(tree: Mapping[str, Any], config: Config) -> Iterator[Explanation]:
    """Each value that a file sets.

    Args:
        tree: what the file has.
        config: what it loads as.
    """
    known = [
        *keys(Config, ""),
        *keys(type(config.algo), "algo"),
        *keys(type(config.observation), "observation"),
    ]
    for path, value in _leaves(tree, ()):
        yield Explanation(path, value, _meaning(path, known), _difference(path))


def _leaves(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _leaves(value, (*path, str(key)))
    elif path and path != ("$schema",):
        yield ".".join(path), node


def _meaning(path: str, known: list[Key]) -> str:
    """Of the key, or of the free-form object that it lies in."""
    if path == "algo_name":
        return "The algorithm."
    for key in known:
        pattern = re.escape(key.path).replace("<name>", "[^.]+")
        if re.fullmatch(rf"{pattern}(\..+)?", path):
            return key.meaning
    return "means nothing, dropped"


def _difference(path: str) -> str:
    for pattern, text in DIFFERENCES:
        if re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), path):
            return text
    return ""


def lines(explanations: Iterator[Explanation]) -> Iterator[str]:
    """For a person."""
    for one in explanations:
        yield f"{one.path} = {json.dumps(one.value)}"
        yield f"    {one.meaning}"
        if one.robomimic:
            yield f"    robomimic: {one.robomimic}"
