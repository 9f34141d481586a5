"""Checkpoint files, which are written atomically and read without running code from the file.

The types of a checkpoint's parts are checked before the parts are used.

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
    calibration      Calibration.to_dict(): the policy's uncertainties in demonstrations; None without an uncertainty
"""

import io
import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from imitate.algo.base.acting import OMITTED, acting_model, load_model
from imitate.algo.base.algo import Algo
from imitate.algo.base.allocation import AllocationLimit
from imitate.algo.base.factory import algo_factory
from imitate.config import Config, load_config
from imitate.errors import CheckpointError, UserError
from imitate.models.preprocess import Preprocess
from imitate.system.missing import no_such
from imitate.system.plain_files import (
    MAX_DEPTH,
    MAX_SETTINGS,
    fresh,
    json_value,
    parsed_json,
    replaced,
)
from imitate.system.recognition import diagnosis, hdf5_words, lerobot_policy
from imitate.system.run_folder import find_checkpoint
from imitate.system.torch_archive import (
    check_archive,
    damage,
    first_line,
    is_archive,
    read_tensors,
)
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
    read_it = partial(read_tensors, io.BytesIO(data), map_location, name=name)
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
        return read_tensors(path, map_location)
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
    if _is_robomimic(ckpt):
        return "robomimic"
    weights = ckpt.get("model", ckpt) if isinstance(ckpt, Mapping) else {}
    named = isinstance(weights, Mapping) and {"_dynamics.0.weight", "_pi.0.weight"} <= {*weights}
    return "TD-MPC2's authors" if named else None


def _is_robomimic(ckpt: object) -> bool:
    """Return true if a loaded object has the entries of robomimic's checkpoints, and no entry that only ours have."""
    parts = set(ckpt) if isinstance(ckpt, Mapping) else set()
    robomimics = {"model", "config", "algo_name", "shape_metadata"}
    return parts >= robomimics and not parts & {"format_version", "preprocess"}


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


_TIMES = 16
"""Largest ratio of the number of values, with repetitions, to the number of stored values in a checkpoint."""
_ROOM = 2**16
"""Number of values that any checkpoint may have in addition to this ratio."""


def _no_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("is NaN")
    return value


def _is_object(text: str) -> str:
    tree = parsed_json(text, "the text")  # raises ValueError, as pydantic wants
    if not isinstance(tree, dict):
        raise ValueError("is not a JSON object")
    return text


Number = Annotated[float, AfterValidator(_no_nan)]
Limits = Annotated[list[Number], Field(min_length=1)]
Shape = list[PositiveInt] | tuple[PositiveInt, ...]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, arbitrary_types_allowed=True)


class _EnvArgs(_Part):
    env_name: str | None = None
    type: int | None = None
    env_kwargs: dict[str, Any] | None = None
    env_version: str | None = None


class _Shapes(_Part):
    all_shapes: dict[str, Shape]
    ac_dim: PositiveInt
    raw_shapes: dict[str, Shape] | None = None
    action_dims: dict[str, PositiveInt] | None = None
    action_low: Limits | None = None
    action_high: Limits | None = None


class _Model(_Part):
    nets: dict[str, torch.Tensor]
    omitted: NonNegativeInt = 0


class _Normalized(_Part):
    offset: torch.Tensor
    scale: torch.Tensor


class _Obs(_Normalized):
    raw_shape: Shape
    modality: str


class _Action(_Normalized):
    dim: PositiveInt
    rotation: str | None = None


class _Preprocess(_Part):
    obs: dict[str, _Obs]
    actions: dict[str, _Action]
    obs_clip: Number | None = None
    version: PositiveInt = 1
    steps: list[dict[str, Any]] = []
    tensors: dict[str, torch.Tensor] = {}


class _Language(_Part):
    instructions: list[str] = []


class DatasetStructure(_Part):
    """An entry of ``train.data`` in a checkpoint."""

    path: str | None = None
    weight: Number = 1.0


class _Provenance(_Part):
    datasets: list[DatasetStructure] = []


class _TrainState(_Part):
    epoch: NonNegativeInt | None = None
    step: NonNegativeInt | None = None
    cpu_s: Number | None = None


class _Calibration(_Part):
    values: torch.Tensor
    held_out: bool


class _Checkpoint(_Part):
    format_version: int
    algo_name: str
    config: Annotated[str, AfterValidator(_is_object)]
    env_metadata: _EnvArgs
    environments: list[_EnvArgs] | None = None
    language: _Language | None = None
    shape_metadata: _Shapes
    model: _Model
    preprocess: _Preprocess
    train_state: _TrainState = _TrainState()
    provenance: _Provenance = _Provenance()
    versions: dict[str, Any] = {}
    rename: dict[str, str] = {}
    calibration: _Calibration | None = None


def check_structure(ckpt: Mapping[str, Any]) -> None:
    """Raise CheckpointError, with a message of one line, if a part has another type than this module lists."""
    try:
        _Checkpoint.model_validate(dict(ckpt))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"'{where}' of the checkpoint: {first['msg']}") from error
    for name, tensor in named_tensors(ckpt):
        check_plain(name.removeprefix("model."), tensor)


def check_extent(ckpt: Any, name: str | Path) -> None:
    """Raise CheckpointError for parts that contain themselves, or repeat values until memory would run out."""
    sizes: dict[int, int] = {}
    stored = 0

    def size(value: Any, depth: int) -> int:
        nonlocal stored
        if not isinstance(value, Mapping | list | tuple | set):
            return 1
        if depth > MAX_DEPTH:
            raise CheckpointError(f"{name}: is nested deeper than {MAX_DEPTH} levels")
        if id(value) not in sizes:
            stored += len(value)
            parts = value.values() if isinstance(value, Mapping) else value
            sizes[id(value)] = 1 + sum(size(part, depth + 1) for part in parts)
        return sizes[id(value)]

    if (whole := size(ckpt, 0)) > _TIMES * stored + _ROOM:
        raise CheckpointError(
            f"{name}: has {stored:,} stored values, but repeats them to {whole:,}, which no "
            "checkpoint does: get the file again"
        )


def check_plain(name: str, tensor: torch.Tensor) -> None:
    """Raise CheckpointError for a tensor that is not an array of real numbers, or is larger than its stored data."""
    if tensor.is_nested or tensor.layout != torch.strided or tensor.device.type == "meta":
        raise CheckpointError(f"'{name}' is not a plain tensor but a sparse, nested or meta tensor")
    if tensor.is_complex() or tensor.is_quantized:
        raise CheckpointError(f"'{name}' has dtype {tensor.dtype}; expected real numbers")
    stored = tensor.untyped_storage().nbytes()
    if tensor.numel() * tensor.element_size() > stored:
        raise CheckpointError(
            f"'{name}' of shape {tuple(tensor.shape)} has only {stored} stored bytes, which it "
            "repeats; expected a tensor with all its values"
        )


def check_kinds(saved: Mapping[str, Any], own: Mapping[str, torch.Tensor]) -> None:
    """Raise CheckpointError if a weight is stored as integers but used as floats, or the other way round."""
    for name, tensor in saved.items():
        wanted = own.get(name)
        if wanted is not None and tensor.is_floating_point() != wanted.is_floating_point():
            raise CheckpointError(
                f"'nets.{name}' has dtype {tensor.dtype}; expected {wanted.dtype}"
            )


def check_weights(model: Mapping[str, Any], preprocess: Mapping[str, Any]) -> None:
    """Raise CheckpointError, naming the tensor, if a weight or a statistic is NaN or infinite."""
    averages = {key: model[key] for key in ("ema", "emas") if key in model}
    for name, tensor in named_tensors(
        {"nets": model["nets"], **averages, "preprocess": preprocess}
    ):
        check_plain(name, tensor)
        # A float64 sum of finite numbers is finite, and computing it is many times as fast as checking each number.
        if not tensor.is_floating_point() or math.isfinite(tensor.sum(dtype=torch.float64)):
            continue
        count = int((~torch.isfinite(tensor)).sum())
        if count > 0:
            raise CheckpointError(
                f"{count} of {tensor.numel()} numbers of '{name}' are not finite; use a checkpoint "
                "from before the training diverged"
            )


def stored_numbers(model: Mapping[str, Any]) -> int:
    """Count the numbers that a checkpoint stores; tensors that share a storage count once.

    Raises:
        CheckpointError: a tensor is larger than its stored data, for example one that repeats a few numbers.
    """
    count, seen = 0, set()
    for name, tensor in named_tensors(model):
        check_plain(name, tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            count += storage.nbytes() // tensor.element_size()
    return count


def named_tensors(tree: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of nested dicts with their dotted names; skip a dict that occurred before."""
    waiting: list[tuple[str, Any]] = [("", tree)]
    seen: set[int] = set()
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, Mapping) and id(value) not in seen:
            seen.add(id(value))
            waiting += [(f"{name}.{key}" if name else str(key), x) for key, x in value.items()]
        elif isinstance(value, list | tuple) and id(value) not in seen:
            seen.add(id(value))
            waiting += [(f"{name}.{number}", x) for number, x in enumerate(value)]
