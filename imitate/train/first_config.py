"""First configuration for a demonstration file, with the reason for each choice."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from imitate.config.from_data import action_normalization, num_epochs
from imitate.config.loading import folder, names, read_tree
from imitate.config.observation import ROBOT_STATE
from imitate.data import DatasetFile
from imitate.data.batches.build import TRAIN_MASK, VALID_MASK
from imitate.data.dataset_file import no_demos
from imitate.data.file.features import features_of
from imitate.data.formats.lerobot_layout import unusual_names
from imitate.data.formats.lerobot_missing import COMPLETE, INCOMPLETE
from imitate.data.quality.doctor.observations import useless_observations
from imitate.errors import ConfigError, DatasetError, nearest
from imitate.policy.export import lerobot_refusal, lerobot_resizes, write_lerobot_keys
from imitate.system.memory import gigabytes
from imitate.system.recognition import LEROBOT_ALGOS, recognise
from imitate.system.text import counted
from imitate.train.forecast import LARGE, image_memory, image_seconds, smaller
from imitate.train.observations import FileObservations, observed

DEFAULT_ALGORITHM = "flow_policy"
EPOCH_STEPS = 100
FEW_STEPS = 2000
"""Number of recorded steps below which smaller batches are chosen."""
SMALLEST_CROPPED = 48
"""Shorter side, in pixels, below which images are not cropped."""
CROP = 0.9
ACTION_DEMOS = 50
"""Number of demos from which the range of actions is read."""
OTHERS = ("fetch/", "metaworld/", "ogbench/", "robosuite/", "paper/")
"""Folders of configurations for single tasks; all other configurations are general."""
VLAS = ("groot", "pi0", "pi0_fast", "pi05", "smolvla", "wall_x", "xvla")
"""Policies of LeRobot that have no counterpart here."""
ENV_KINDS = {1: "robosuite", 2: "gymnasium"}


@dataclass(frozen=True)
class FirstConfig:
    """A configuration tree, with a line (topic and explanation) for each choice.

    Attributes:
        tree: the configuration.
        reasons: topic and explanation of each choice.
        image_s: rough estimate of the seconds that image encoders need in all updates on a CPU; 0 if not known.
    """

    tree: dict[str, Any]
    reasons: tuple[tuple[str, str], ...]
    image_s: float


@dataclass(frozen=True)
class _Contents:
    """The properties of a file on which a configuration depends."""

    path: Path
    masks: frozenset[str]
    mask: str | None
    demos: int
    chosen: int
    failures: int
    steps: int
    rate_hz: float | None
    env_meta: Mapping[str, Any]
    useless: Mapping[str, str]
    other_names: str
    incomplete: str
    actions_low: float
    actions_high: float
    action_dim: int
    found: FileObservations


def first_config(
    path: str | Path,
    algorithm: str = DEFAULT_ALGORITHM,
    images: str = "all",
    image_size: tuple[int, int] | None = None,
    skip_incomplete: bool = False,
    toolkit: str | None = None,
) -> FirstConfig:
    """Make a configuration for a demonstration file.

    Args:
        path: the file, or a dataset of another format.
        algorithm: a template such as ``bc/bc_rnn_gmm``, or the end of its name such as ``bc_rnn_gmm``.
        images: ``all``, ``none``, or keys of images, separated by commas.
        image_size: (height, width) to which a step ``resize`` scales all images, or None to keep their sizes.
        skip_incomplete: train on the demos that have all images, if others lack some.
        toolkit: ``lerobot`` to name the keys so that LeRobot can load the trained policy as its own, or None.

    Raises:
        UserError: the file cannot be used, there is no such algorithm or image, or LeRobot has no such policy.
    """
    algorithm, templates = _templates(algorithm)
    contents = _contents(Path(path), skip_incomplete)
    if contents.incomplete and images == "all" and not skip_incomplete:
        raise ConfigError(
            f"{path}: {contents.incomplete}: add --skip-incomplete to train on what is complete, or --images none"
        )
    cameras = _cameras(contents.found, images)
    template = templates.get(f"{algorithm}_image", "") if cameras else ""
    template = template or templates[algorithm]
    vectors, vector_words = _vectors(contents, bool(cameras))
    tree = read_tree(template)
    if "modalities" not in tree.get("observation", {}):
        raise ConfigError(
            f"{template}: has several lists of observations: set its observation keys by hand, or choose another --algo"
        )
    on_gpu = torch.cuda.is_available()
    batch = _batch_size(tree, contents.steps, bool(cameras))
    from_data = num_epochs(contents.steps, batch, EPOCH_STEPS)
    usual = tree["train"].get("num_epochs")
    epochs = from_data if usual is None else max(usual, from_data)
    plays, play_words = _rollouts(contents.env_meta)
    validates = VALID_MASK in contents.masks
    _fill_experiment(tree["experiment"], contents, plays, validates, epochs)
    train = tree["train"]
    train.update({"data": str(path), "batch_size": batch, "num_epochs": usual and epochs})
    train.update({"hdf5_filter_key": contents.mask} if contents.mask else {})
    train.update({"hdf5_validation_filter_key": VALID_MASK} if validates else {})
    train.update({"precision": "auto"} if cameras else {})
    modalities: dict[str, Any] = {"low_dim": vectors}
    modalities.update({"rgb": cameras} if cameras else {})
    tree["observation"] = {"modalities": {"obs": modalities}}
    shapes = {key: contents.found.shapes[key] for key in cameras}
    if cameras and image_size is not None:
        shapes = {key: (*image_size, shape[2]) for key, shape in shapes.items()}
        resize = {"step": "resize", "size": list(image_size)}
        train["preprocess"] = [resize, *train.get("preprocess", ())]
    encoder, encoder_words = _encoder(shapes, on_gpu)
    tree["observation"].update({"encoder": encoder} if cameras else {})
    if toolkit is not None:
        write_lerobot_keys(tree)
        encoder_words = "ResNet18Conv, as LeRobot has it" if cameras else ""
    memory_words = _memory_words(tree, shapes, contents.path, toolkit)
    updates = epochs * EPOCH_STEPS
    rough_s = updates * image_seconds(tree, shapes)
    passes = epochs * EPOCH_STEPS * batch / max(contents.steps, 1)
    reasons = [
        ("data", _data_words(contents, validates)),
        ("names", contents.other_names),
        ("incomplete", contents.incomplete),
        ("algorithm", f"{template}; choose another with --algo"),
        ("vectors", vector_words),
        ("images", _image_words(contents.found, cameras, image_size)),
        ("encoder", encoder_words),
        ("memory", memory_words),
        ("actions", _action_words(contents)),
        ("control rate", _rate_words(contents.rate_hz)),
        ("rollouts", play_words),
        ("robots", _robot_words(tree, contents, toolkit)),
        (
            "updates",
            f"{updates:,} of {batch} samples, {passes:.0f} passes over the training steps",
        ),
    ]
    kept = tuple((topic, words) for topic, words in reasons if words)
    return FirstConfig(tree, kept, 0.0 if on_gpu else rough_s)


# ---- the file ------------------------------------------------------------------------------------------------------


def _robot_words(tree: dict[str, Any], contents: _Contents, toolkit: str | None) -> str:
    """Return a sentence on how LeRobot can run the policy; '' if the data are not LeRobot's and ``toolkit`` is None.

    Raises:
        ConfigError: ``toolkit`` cannot take the policy.
    """
    found = recognise(contents.path)
    if toolkit is None and (found is None or found.kind != "lerobot-dataset"):
        return ""
    shapes, action_dims = contents.found.shapes, {"actions": contents.action_dim}
    command = "LeRobot runs it after imitate convert-checkpoint RUN FOLDER --to lerobot"
    reason = lerobot_refusal(tree, shapes, action_dims)
    if not reason:
        return command
    if toolkit is not None:
        raise ConfigError(f"--for {toolkit}: {reason}")
    words = f"{command}-plugin"
    if tree["algo_name"] in LEROBOT_ALGOS.values():
        other = deepcopy(tree)
        write_lerobot_keys(other)
        if not lerobot_refusal(other, shapes, action_dims):
            words += f"; as its own {tree['algo_name']} with the keys that --for lerobot writes"
    return words


def _contents(path: Path, skip_incomplete: bool) -> _Contents:
    with DatasetFile(path) as file:
        masks = frozenset(file.filter_keys())
        mask = TRAIN_MASK if TRAIN_MASK in masks else None
        mask = COMPLETE if skip_incomplete and COMPLETE in masks else mask
        chosen = file.demos(mask)
        if not chosen:
            raise no_demos(file, mask)
        found = observed([(file, chosen[0])])
        lengths = [file.length(demo) for demo in chosen]
        _check_shapes(file, chosen[:ACTION_DEMOS], found.keys("low_dim"))
        low, high = _action_range(file, chosen[:ACTION_DEMOS])
        success = [file.success(demo) for demo in chosen]
        return _Contents(
            path=path,
            masks=masks,
            mask=mask,
            demos=len(file.demos()),
            chosen=len(chosen),
            failures=sum(word is not None and not word for word in success),
            steps=sum(lengths),
            rate_hz=file.control_freq,
            env_meta=file.env_meta,
            useless=useless_observations(file, chosen[:ACTION_DEMOS], found.keys("low_dim")),
            other_names=_other_names(file),
            incomplete=str(file.file_attrs.get(INCOMPLETE, "")),
            actions_low=low,
            actions_high=high,
            action_dim=math.prod(file.shape(chosen[0], "actions")[1:]),
            found=found,
        )


def _action_range(file: DatasetFile, demos: Sequence[str]) -> tuple[float, float]:
    """Return the smallest and the largest number in the actions."""
    pieces = (actions for demo in demos for _, actions in file.pieces(demo, "actions"))
    ranges = [(float(actions.min()), float(actions.max())) for actions in pieces if actions.size]
    if not ranges:
        raise DatasetError(f"{file.path}: no demo has an action: record some steps first")
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _check_shapes(file: DatasetFile, demos: Sequence[str], keys: Sequence[str]) -> None:
    """Raise DatasetError if the actions, or a vector observation, of two demos have different shapes per step."""
    for name in ("actions", *(f"obs/{key}" for key in keys)):
        shapes = {file.shape(demo, name)[1:]: demo for demo in demos if file.has(demo, name)}
        if len(shapes) > 1:
            words = " and ".join(f"{shape} in '{demo}'" for shape, demo in list(shapes.items())[:2])
            raise DatasetError(
                f"{file.path}: '{name}' has steps of shape {words}; see imitate dataset doctor"
            )


def _other_names(file: DatasetFile) -> str:
    entries = features_of(file.file_attrs, str(file.path))
    return unusual_names((str(entry["feature"]), key) for key, entry in entries.items())


def _data_words(contents: _Contents, validates: bool) -> str:
    mask = f" (filter key '{contents.mask}')" if contents.mask else ""
    words = (
        f"{contents.chosen} of {counted(contents.demos, 'demo')}{mask}, {contents.steps:,} steps"
    )
    # A dataset of another format is never changed; commands change its converted copy.
    own = contents.path.suffix in (".hdf5", ".h5")
    where = "--in-place" if own else "--out NEW.hdf5"
    if contents.failures == contents.chosen:
        words += "; none of them is marked as solved"
    elif contents.failures:
        key = "train.hdf5_filter_key good" + ("" if own else " of that file")
        words += (
            f"; {contents.failures} of them failed: `imitate dataset filter {contents.path} good --success "
            f"{where}`, then {key}"
        )
    if validates:
        return f"{words}; validated on the filter key '{VALID_MASK}'"
    return (
        f"{words}; no held-out demos (`imitate dataset split {contents.path} {where}` makes some)"
    )


def _vectors(contents: _Contents, with_images: bool) -> tuple[list[str], str]:
    """Return the chosen vector keys, and a text about the choice: all keys, or for robosuite those of robomimic.

    With images, robosuite's object poses are left out.
    """
    keys, useless = contents.found.keys("low_dim"), contents.useless
    usual = [key for key in ROBOT_STATE if not (with_images and key == "object")]
    if contents.env_meta.get("type") == 1 and set(usual) <= set(keys):
        left = [key for key in keys if key not in usual]
        words = ", ".join(usual) + (
            f"; robosuite's usual ones, without {', '.join(left)}" if left else ""
        )
        return usual, words
    # Without images, useless observations are kept if there are no others.
    if with_images or set(keys) - set(useless):
        keys = [key for key in keys if key not in useless]
    words = ", ".join(f"{key} {contents.found.shapes[key]}" for key in keys) or "none"
    left_out = {key: reason for key, reason in useless.items() if key not in keys}
    for key, reason in (left_out | dict(contents.found.left_out)).items():
        words += f"; {key} is left out: {reason}"
    return keys, words


def _cameras(found: FileObservations, images: str) -> list[str]:
    keys = found.keys("rgb")
    if images == "all":
        return keys
    chosen = [] if images == "none" else [key.strip() for key in images.split(",")]
    for key in chosen:
        if key not in keys:
            raise ConfigError(f"--images: there are no colour images '{key}', {nearest(key, keys)}")
    return chosen


def _image_words(found: FileObservations, cameras: list[str], size: tuple[int, int] | None) -> str:
    there = found.keys("rgb")
    if not there:
        return ""
    if not cameras:
        return f"none of {', '.join(there)} (--images none)"
    rest = [key for key in there if key not in cameras]
    words = ", ".join(f"{key} {found.shapes[key]}" for key in cameras)
    words += f", resized to {_size(size)}" if size else ""
    return words + (f"; without {', '.join(rest)}" if rest else "; --images none leaves them out")


def _memory_words(
    tree: dict[str, Any], shapes: dict[str, tuple[int, ...]], path: Path, toolkit: str | None
) -> str:
    """Describe the memory that large images need in an update and a smaller size; "" if images are small."""
    needed = image_memory(tree, shapes)
    if needed < LARGE:
        return ""
    size = max((shape[:2] for shape in shapes.values()), key=math.prod)
    words = f"about {gigabytes(int(needed))} for the images of an update, of {_size(size)}"
    if toolkit is not None and not lerobot_resizes(tree):
        return words
    while needed >= LARGE and smaller(size) != size:
        size = smaller(size)
        less: dict[str, tuple[int, ...]] = {key: (*size, shape[2]) for key, shape in shapes.items()}
        encoder, _ = _encoder(less, torch.cuda.is_available())
        observation = {**tree["observation"], "encoder": encoder}
        needed = image_memory({**tree, "observation": observation}, less)
    return (
        f"{words}; {gigabytes(int(needed))} at {_size(size)}, by a step resize: `imitate config init {path} "
        f"--image-size {_size(size)}`"
    )


def _size(size: Sequence[int]) -> str:
    return f"{size[0]}x{size[1]}"


def _action_words(contents: _Contents) -> str:
    low, high = contents.actions_low, contents.actions_high
    words = f"{counted(contents.action_dim, 'number')} from {low:.3g} to {high:.3g}"
    if action_normalization(low, high) == "min_max":
        return (
            f"{words}: scaled to [-1, 1] for the networks, and back (normalization auto: min_max)"
        )
    return f"{words}: not scaled (normalization auto)"


def _rate_words(rate_hz: float | None) -> str:
    if rate_hz is None:
        return "not in the file; the policy has to act at the rate of the recording"
    return f"{rate_hz:g} Hz: the policy has to act at the same rate"


# ---- choices -------------------------------------------------------------------------------------------------------


def _is_online(tree: dict[str, Any]) -> bool:
    return bool(tree["train"].get("online", {}).get("enabled"))


def _templates(algorithm: str) -> tuple[str, dict[str, str]]:
    """Return the last part of the algorithm's name, and the general configurations by the last part of their names."""
    templates: dict[str, str] = {}
    for name in names():
        path = folder() / f"{name}.json"
        if not name.startswith(OTHERS) and not _is_online(read_tree(path)):
            templates[path.stem] = name
    end = algorithm.rpartition("/")[2]
    if end in VLAS:
        raise ConfigError(
            f"--algo: LeRobot's {end} and other VLAs are not available here: choose act, diffusion_policy or "
            "flow_policy, which learn from the same data"
        )
    if algorithm not in (end, templates.get(end)) or end not in templates:
        raise ConfigError(
            f"--algo: no algorithm '{algorithm}' for demonstrations, {nearest(algorithm, templates)}"
        )
    return end, templates


def _fill_experiment(
    section: dict[str, Any], contents: _Contents, plays: bool, validates: bool, epochs: int
) -> None:
    section["name"] = contents.path.stem
    section["epoch_every_n_steps"] = EPOCH_STEPS
    section["save"] = {"every_n_epochs": max(1, epochs // 4)}
    if validates:
        section["validate"] = True
        section["save"]["on_best_validation"] = True
    if not plays:
        section["rollout"] = {"enabled": False}


def _rollouts(env_meta: Mapping[str, Any]) -> tuple[bool, str]:
    env_type = env_meta.get("type")
    kind = ENV_KINDS.get(env_type or 0)
    if kind is None:
        return (
            False,
            f"off: an environment of type {env_type} is not a simulator; compare checkpoints "
            "on the robot",
        )
    if find_spec(kind) is None:
        return False, f"off: the package '{kind}' is not installed"
    name = str(env_meta.get("env_name"))
    module, _, env_id = name.rpartition(":")
    if module and find_spec(module.partition(".")[0]) is None:
        return (
            False,
            f"off: the environment '{name}' is in the module '{module}', which is not installed",
        )
    if kind == "gymnasium" and not module and not _is_registered(env_id):
        return False, f"off: gymnasium has no environment '{name}' here"
    return True, f"on: {kind} evaluates the policy during training"


def _is_registered(env_id: str) -> bool:
    import gymnasium

    try:
        gymnasium.spec(env_id)
    except gymnasium.error.Error:
        return False
    return True


def _batch_size(tree: dict[str, Any], steps: int, with_images: bool) -> int:
    usual = int(tree["train"].get("batch_size", 256))
    return min(usual, 64) if with_images or steps < FEW_STEPS else usual


def _encoder(images: dict[str, tuple[int, ...]], on_gpu: bool) -> tuple[dict[str, Any], str]:
    """Return section ``observation.encoder`` and a text: one encoder for all cameras, or one each if sizes differ."""
    if not images:
        return {}, ""
    name = "ResNet18Conv" if on_gpu else "ShallowConv"
    why = "a GPU is available" if on_gpu else "four convolutions, because there is no GPU"
    sizes = {shape[:2] for shape in images.values()}
    crops = ", ".join(f"{_side(h)} x {_side(w)} of {h} x {w}" for h, w in sorted(sizes))
    cropped = (
        f"random crops of {crops}"
        if any(_side(min(size)) < min(size) for size in sizes)
        else "too small to crop"
    )
    words = f"{name} ({why}); {cropped}"
    if len(sizes) == 1:
        return {"rgb": _encoder_of(sizes.pop(), name)}, words
    return {key: _encoder_of(shape[:2], name) for key, shape in images.items()}, words


def _side(length: int) -> int:
    """Return the side of a crop in pixels: an even number, or ``length`` itself if it is too short to crop."""
    return length if length < SMALLEST_CROPPED else 2 * round(CROP * length / 2)


def _encoder_of(size: Sequence[int], backbone: str) -> dict[str, Any]:
    pool = {"num_kp": None, "temperature": 0.1} if backbone == "ShallowConv" else {"num_kp": 32}
    encoder: dict[str, Any] = {
        "core_class": "VisualCore",
        "core_kwargs": {
            "backbone_class": backbone,
            "pool_class": "SpatialSoftmax",
            "pool_kwargs": pool,
            "feature_dimension": 64,
        },
    }
    if min(size) >= SMALLEST_CROPPED:
        encoder["obs_randomizer_class"] = "CropRandomizer"
        encoder["obs_randomizer_kwargs"] = {
            "crop_height": _side(size[0]),
            "crop_width": _side(size[1]),
        }
    return encoder
