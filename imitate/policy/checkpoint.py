"""Checkpoint files, which are written atomically and read without running code from the file.

A checkpoint is a dict of tensors, numbers, strings, lists and dicts:

    format_version   int, FORMAT_VERSION of the version that wrote it
    algo_name        str
    config           the resolved configuration, a JSON string
    env_metadata     env_args of the dataset (dict)
    environments     env_args of all training environments, with `key` and `lang` if there are several
    language         language instructions and their embeddings; None without language
    shape_metadata   ac_dim, all_shapes {key: network shape}, raw_shapes {key: shape in the data}, action_dims,
                     action_low, action_high, names {key: names of its numbers}: of the robot in the data
    model            Algo.serialize(), or the acting networks alone (imitate.algo.base.acting)
    preprocess       Preprocess.to_dict()
    train_state      epoch, step and everything else that an exact resume needs
    provenance       dataset fingerprint, git commit
    versions         of imitate, torch, numpy, python
    rename           {observation name in the environment: the policy's name}; absent if nothing is renamed
    calibration      values, ascending uncertainties of the policy in demonstrations, and held_out; None without
"""

from __future__ import annotations

import io
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from imitate.algo.base.acting import OMITTED, acting_model, load_model
from imitate.algo.base.algo import Algo
from imitate.algo.base.allocation import AllocationLimit
from imitate.algo.base.factory import algo_factory
from imitate.config import Config, load_config
from imitate.errors import CheckpointError, UserError
from imitate.interop.robomimic.importing import is_robomimic, read
from imitate.models.preprocess import Preprocess
from imitate.policy.structure import (
    check_extent,
    check_kinds,
    check_structure,
    check_weights,
    stored_numbers,
)
from imitate.system.missing import no_such
from imitate.system.plain_files import MAX_SETTINGS, fresh, json_value, replaced
from imitate.system.recognition import diagnosis, hdf5_words, lerobot_policy
from imitate.system.run_folder import find_checkpoint
from imitate.system.torch_archive import check_archive, damage, first_line, is_archive
from imitate.system.version import __version__

FORMAT_VERSION = 2
"""``format_version`` of checkpoints with steps of ``train.preprocess``; all other checkpoints have version 1."""
_PARTS = ("algo_name", "config", "env_metadata", "shape_metadata", "model", "preprocess")


def checkpoint_dict(
    algo: Algo,
    *,
    env_metadata: Mapping[str, Any],
    shape_metadata: Mapping[str, Any],
    train_state: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    environments: Sequence[Mapping[str, Any]] | None = None,
    language: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    calibration: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the checkpoint of an algorithm as a dict; numpy arrays and scalars become lists and numbers.

    If ``model`` is given, it replaces the result of :meth:`Algo.serialize`, for example if only some weights are known.
    """
    return {
        "format_version": FORMAT_VERSION if algo.preprocess.chosen_steps else 1,
        "algo_name": algo.global_config.algo_name,
        "config": algo.global_config.to_json(),
        "env_metadata": _plain(env_metadata),
        "environments": _plain([env_metadata] if environments is None else environments),
        "language": None if language is None else _plain(language),
        "shape_metadata": _plain(
            {
                "ac_dim": algo.ac_dim,
                "all_shapes": {k: list(v) for k, v in algo.obs_key_shapes.items()},
                **shape_metadata,
            }
        ),
        "model": algo.serialize() if model is None else dict(model),
        "preprocess": algo.preprocess.to_dict(),
        "train_state": _plain(train_state or {}),
        "provenance": _plain(provenance or {}),
        "calibration": None if calibration is None else dict(calibration),
        "versions": {
            "imitate": __version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def control_freq_of(ckpt: Mapping[str, Any]) -> float | None:
    """Return the control rate of a policy's training data in Hz; None if it is not recorded."""
    rate = ckpt["shape_metadata"].get("control_freq")
    if rate is None:
        kwargs = ckpt["env_metadata"].get("env_kwargs")
        rate = kwargs.get("control_freq") if isinstance(kwargs, Mapping) else None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or rate <= 0:
        return None
    return float(rate)


def save_checkpoint(ckpt: Mapping[str, Any], path: str | Path) -> None:
    """Write a checkpoint atomically: to a temporary file beside ``path``, flushed to the disk, then renamed.

    Raises:
        CheckpointError: the disk is full or not writable; an existing file at ``path`` is unchanged.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as part, fresh(part) as file:
            torch.save(dict(ckpt), file)
    except (OSError, RuntimeError) as error:
        # torch reports a full disk as a RuntimeError of its zip writer.
        raise CheckpointError(
            f"{path}: the checkpoint could not be written ({error}); earlier checkpoints are unchanged. Free some "
            "space or choose another output directory"
        ) from error


def load_checkpoint(path: str | Path, map_location: str | torch.device = "cpu") -> dict[str, Any]:
    """Read a checkpoint file, or the best checkpoint of a run folder; convert checkpoints of robomimic and LeRobot.

    No code from the file is executed. Checksums are verified before the file is read. Then the types of all parts are
    checked, and that the weights are finite.

    Raises:
        CheckpointError: the file does not exist, is truncated or damaged, is not a checkpoint, has a newer format, has
            weights that are not finite, or has objects of types that a checkpoint does not have.
    """
    path = Path(path)
    theirs = lerobot_policy(path)
    if theirs is not None:
        return _from_lerobot(theirs)
    if path.is_dir():
        path = find_checkpoint(path)
    if not path.is_file():
        raise CheckpointError(no_such(path, "checkpoint file"))
    if not is_archive(path):
        raise CheckpointError(
            diagnosis(path)
            or hdf5_words(path)
            or f"{path}: not a checkpoint, or truncated while it was copied or written ({path.stat().st_size} bytes); "
            "use another checkpoint of the run"
        )
    return _checked(partial(_read_known, path, map_location), path, path, path.stat().st_size)


def checkpoint_from_bytes(
    data: bytes, name: str | Path, map_location: str | torch.device = "cpu"
) -> dict[str, Any]:
    """Read a checkpoint from the bytes of its file, with the checks of :func:`load_checkpoint`.

    Args:
        data: the whole file.
        name: name of the file, for messages.
        map_location: device of the tensors.

    Raises:
        CheckpointError: for the same reasons as in :func:`load_checkpoint`.
    """
    if not is_archive(io.BytesIO(data)):
        raise CheckpointError(
            f"{name}: is not a checkpoint, or is truncated ({len(data)} bytes): copy the file again"
        )
    read_it = partial(read, io.BytesIO(data), map_location, name=name)
    return _checked(read_it, io.BytesIO(data), name, len(data))


def checkpoint_to_bytes(ckpt: Mapping[str, Any]) -> bytes:
    """Return the bytes of the file that :func:`save_checkpoint` would write."""
    stream = io.BytesIO()
    torch.save(dict(ckpt), stream)
    return stream.getvalue()


def _checked(
    read_it: Callable[[], Any], source: Path | io.BytesIO, name: str | Path, size: int
) -> dict[str, Any]:
    """Read an archive by calling ``read_it``, with checks before and after reading."""
    try:
        check_archive(source, name, size)
        ckpt = read_it()
        check_extent(ckpt, name)
    except UserError:
        raise
    except Exception as error:  # torch's unpickler may raise any exception
        raise damage(name, first_line(error)) from error
    if _toolkit(ckpt) is not None:
        return converted(ckpt, name)
    _check_format(ckpt, name)
    return dict(ckpt)


def _read_known(path: Path, map_location: str | torch.device) -> Any:
    """Read the file; if it cannot be read because another toolkit wrote it, the error names the toolkit."""
    try:
        return read(path, map_location)
    except (RuntimeError, CheckpointError) as error:
        known = diagnosis(path)
        if known is None:
            raise
        raise CheckpointError(known) from error


def converted(ckpt: Mapping[str, Any], source: str | Path = "ckpt_dict") -> dict[str, Any]:
    """Return a checkpoint; convert it to our format if robomimic or the authors' code of TD-MPC2 wrote it.

    Raises:
        CheckpointError: a part of the other toolkit's checkpoint has no counterpart here.
    """
    toolkit = _toolkit(ckpt)
    if toolkit is None:
        return dict(ckpt)
    try:
        imported = _imported(ckpt, toolkit)
        return checkpoint_dict(imported.algo, **imported.parts)
    except UserError as error:
        raise CheckpointError(
            f"{source}: this checkpoint of {toolkit} cannot be converted: {error}"
        ) from error
    except Exception as error:  # values of an unexpected type may raise any exception
        raise CheckpointError(
            f"{source}: this checkpoint of {toolkit} has unexpected content and cannot be converted "
            f"({first_line(error)})"
        ) from error


def _toolkit(ckpt: object) -> str | None:
    """Return the name of the other toolkit that wrote a checkpoint; None if it is our own or unknown."""
    if is_robomimic(ckpt):
        return "robomimic"
    weights = ckpt.get("model", ckpt) if isinstance(ckpt, Mapping) else {}
    named = isinstance(weights, Mapping) and {"_dynamics.0.weight", "_pi.0.weight"} <= {*weights}
    return "TD-MPC2's authors" if named else None


def _imported(ckpt: Mapping[str, Any], toolkit: str) -> Any:
    """Convert the checkpoint of another toolkit."""
    # These modules load many algorithms, so they are imported only for checkpoints of other toolkits.
    if toolkit == "robomimic":
        from imitate.interop.robomimic.importing import from_robomimic

        return from_robomimic(ckpt)
    from imitate.interop.tdmpc2 import from_tdmpc2

    return from_tdmpc2(ckpt)


def _from_lerobot(folder: Path) -> dict[str, Any]:
    from imitate.interop.lerobot.importing import from_lerobot

    try:
        imported = from_lerobot(folder)
        return checkpoint_dict(imported.algo, **imported.parts)
    except UserError as error:
        raise CheckpointError(
            f"{folder}: this policy of LeRobot cannot be converted: {error}"
        ) from error
    except Exception as error:  # values of an unexpected type may raise any exception
        raise CheckpointError(
            f"{folder}: this policy of LeRobot has unexpected content and cannot be converted ({first_line(error)})"
        ) from error


def algo_from_checkpoint(
    ckpt: Mapping[str, Any],
    device: str | torch.device = "cpu",
    load_optimizers: bool = False,
    source: str | Path = "ckpt_dict",
) -> Algo:
    """Build the algorithm of a checkpoint and load its weights.

    Args:
        ckpt: result of :func:`load_checkpoint` or :func:`checkpoint_dict`.
        device: device of the networks.
        load_optimizers: also load the optimizers, to resume the training.
        source: name of the file, for messages.

    Raises:
        CheckpointError: a part has the wrong type, a weight is not finite, the weights do not fit the configuration, or
            the configuration describes larger networks than the checkpoint has weights for.
    """
    try:
        check_structure(ckpt)
        check_weights(ckpt["model"], ckpt["preprocess"])
        algo = _built(ckpt, device)
        _fill(algo, ckpt["model"], load_optimizers)
    except UserError as error:
        raise CheckpointError(f"{source}: {error}") from error
    except Exception as error:  # values of the right type may still be invalid
        raise CheckpointError(
            f"{source}: no algorithm can be built from the checkpoint ({first_line(error)})"
        ) from error
    return algo


def acting_only(ckpt: Mapping[str, Any], source: str | Path = "ckpt_dict") -> dict[str, Any]:
    """Return a checkpoint with only the networks that act; a training cannot be resumed from it.

    Raises:
        CheckpointError: see :func:`algo_from_checkpoint`.
    """
    model = acting_model(algo_from_checkpoint(ckpt, source=source))
    state = {
        key: ckpt["train_state"][key] for key in ("epoch", "step") if key in ckpt["train_state"]
    }
    return {**ckpt, "model": model, "train_state": state}


def config_of(ckpt: Mapping[str, Any]) -> Config:
    """Return the configuration of a checkpoint; raise ConfigError if it is not valid."""
    return load_config(json_value(ckpt["config"], MAX_SETTINGS))


def _built(ckpt: Mapping[str, Any], device: str | torch.device) -> Algo:
    """Build the algorithm of a checkpoint with random weights."""
    shapes = {key: tuple(shape) for key, shape in ckpt["shape_metadata"]["all_shapes"].items()}
    config = config_of(ckpt)
    # The caller's random number generators stay unchanged, because the random weights are replaced afterwards.
    limit = AllocationLimit(stored_numbers(ckpt["model"]), ckpt["model"].get(OMITTED, 0))
    with torch.random.fork_rng(devices=[]), limit:
        algo = algo_factory(
            ckpt["algo_name"],
            config,
            shapes,
            ckpt["shape_metadata"]["ac_dim"],
            device,
            load_pretrained=False,
        )
        algo.preprocess = Preprocess.from_dict(ckpt["preprocess"]).to(algo.device)
    for key in (*algo.obs_shapes, *algo.goal_shapes):
        if key not in algo.preprocess.raw_shapes:
            raise CheckpointError(
                f"observation '{key}' of the configuration is missing in 'preprocess.obs' of the checkpoint"
            )
    return algo


def _fill(algo: Algo, model: Mapping[str, Any], load_optimizers: bool) -> None:
    check_kinds(model["nets"], algo.nets.state_dict())
    try:
        load_model(algo, model, load_optimizers)
    except UserError:
        raise
    except Exception as error:
        words = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
        raise CheckpointError(
            f"the checkpoint's weights do not fit its configuration: {words}"
        ) from error


def _check_format(ckpt: Any, path: str | Path) -> None:
    if not isinstance(ckpt, dict) or "format_version" not in ckpt:
        raise CheckpointError(
            f"{path}: not a checkpoint of this toolkit (it has no 'format_version')"
        )
    if type(ckpt["format_version"]) is int and ckpt["format_version"] > FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: written in format {ckpt['format_version']} by imitate "
            f"{_writer(ckpt)}; this version reads up to {FORMAT_VERSION}: upgrade imitate"
        )
    missing = [part for part in _PARTS if part not in ckpt]
    if missing:
        raise CheckpointError(f"{path}: parts of the checkpoint are missing: {', '.join(missing)}")
    try:
        check_structure(ckpt)
        check_weights(ckpt["model"], ckpt["preprocess"])
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _writer(ckpt: Mapping[str, Any]) -> str:
    versions = ckpt.get("versions")
    return str(versions.get("imitate")) if isinstance(versions, Mapping) else "an unknown version"


def _plain(value: Any) -> Any:
    """Return the same tree with numbers and lists in place of numpy values and tuples."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    return value
