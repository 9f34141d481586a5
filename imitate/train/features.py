"""Training on cached features of frozen image encoders instead of images.

If the trunk of an image's encoder is frozen and nothing random comes before it, its features depend on the image alone.
They are computed once per dataset and read by each batch. Validation and acting still use images.

All processes read the features from one file. A cache file contains one row per step of a dataset, float16, in the same
layout as in RAM. Its name includes a digest, made by the caller, of everything that the features depend on. The folder
is ``features`` in the cache (:mod:`imitate.data.file.cache`); the least recently used files are removed if a new one
would exceed the cache's limit.
"""

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.algo.slots.frozen import frozen_policy_of
from imitate.data import SequenceDataset
from imitate.data.batches.store import Store
from imitate.data.file.cache import cache_folder, limit_bytes, remove_oldest, was_read
from imitate.data.shards.data_files import DataFiles
from imitate.errors import DatasetError
from imitate.models.key_encoder import KeyEncoder
from imitate.models.observation import ObservationEncoder
from imitate.system.memory import gigabytes
from imitate.system.plain_files import give_name, locked
from imitate.system.text import ProgressBar
from imitate.train.setup import Setup


def put_blank_features(algo: Algo, data: SequenceDataset, raw: dict[str, Any]) -> None:
    """Replace the images of a raw batch by zeros in the shape of their features, if a run would use cached features.

    An update then takes the time that it takes in the run, without computing any feature.

    Args:
        algo: algorithm with any weights; the shapes are added to its ``preprocess``.
        data: dataset that contains the batch.
        raw: the batch, changed in place.
    """
    for key, nets in frozen_networks(algo).items():
        shape = nets[0].frozen_shape
        if shape is None or obstacle(algo, key, nets, data) is not None:
            continue
        algo.preprocess.feature_shapes[key] = shape
        for group in ("obs", "next_obs", "goal_obs"):
            if key in (raw.get(group) or {}):
                images = raw[group][key]
                raw[group][key] = torch.zeros(*images.shape[:-3], *shape, dtype=torch.float16)


def frozen_networks(algo: Algo) -> dict[str, list[KeyEncoder]]:
    """Return the encoders of each image key for which the trunks of all encoders are frozen."""
    found: dict[str, list[KeyEncoder]] = {}
    for encoder in _encoders(algo):
        for key, net in encoder.networks_of_keys().items():
            found.setdefault(key, []).append(net)
    return {
        key: nets
        for key, nets in found.items()
        if all(getattr(net.core, "frozen_shape", None) is not None for net in nets)
    }


def _encoders(algo: Algo) -> Iterator[ObservationEncoder]:
    averaged = [] if algo.ema is None else list(algo.ema.module.modules())
    for module in (*algo.nets.modules(), *averaged):
        if isinstance(module, ObservationEncoder):
            yield module


def obstacle(algo: Algo, key: str, nets: list[KeyEncoder], data: Any) -> str | None:
    """Return the reason why features cannot replace the images of a key, or None if they can."""
    if any(net.frozen_shape is None for net in nets):
        return "obs_randomizer_class changes images at random"
    if algo.learners != (algo,) or frozen_policy_of(algo) is not None or key in algo.subgoal_shapes:
        return f"{algo.global_config.algo_name} has parts that take images"
    if algo.auxiliaries:
        return "algo.auxiliary takes images"
    if not isinstance(data, SequenceDataset):
        return "with train.shard_window, shards are read in turn"
    return None


DTYPE = np.dtype(np.float16)
_SPARE_BYTES = 10**9
"""Free disk space in bytes that the cache leaves unused."""
_ROWS_AT_ONCE = 64

Compute = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Function from row numbers (M,) to features (M, ...)."""


class NoRoomError(Exception):
    """Raised if the cache has no room for the features; the message contains the reason."""


class StoppedError(Exception):
    """Raised if the caller stopped the computation; features computed so far are kept for the next run."""


def features_folder() -> Path:
    """Return the cache's folder of feature files."""
    return cache_folder("features")


def features_once(
    name: str,
    count: int,
    shape: tuple[int, ...],
    compute: Compute,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[Tensor, str]:
    """Return the features of all rows. If there is no file, compute them, continuing where an earlier run stopped.

    Args:
        name: name of the file: the observation and the digest.
        count: number of rows N.
        shape: shape of one row.
        compute: computes the features of some rows.
        stopped: returns true if the caller wants to stop.

    Returns:
        (N, *shape) float16, mapped from the file, and a line that names the file.

    Raises:
        NoRoomError: the file cannot be written.
        StoppedError: ``stopped`` became true.
        DatasetError: features exceed the range of float16.
    """
    folder = features_folder()
    size = count * math.prod(shape) * DTYPE.itemsize
    path = folder / f"{name}.features"
    found = _size_of(path) == size
    if not found:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / f"{name}.partial") as out:
                if _size_of(path) != size:  # another process may have written the file meanwhile
                    _make_room(path, size, out.seek(0, os.SEEK_END))
                    _compute_rows(name, out, count, shape, compute, stopped)
                    give_name(Path(out.name), path)
                else:
                    Path(out.name).unlink()
        except OSError as error:
            raise NoRoomError(f"{folder}: {error.strerror or error}") from error
    was_read(path)
    values: NDArray[Any] = np.memmap(path, DTYPE, "c", shape=(count, *shape))
    words = "are read from" if found else "were computed once into"
    return torch.from_numpy(values), f"features {words} {path} ({gigabytes(size)})"


def _compute_rows(
    name: str,
    out: IO[bytes],
    count: int,
    shape: tuple[int, ...],
    compute: Compute,
    stopped: Callable[[], bool],
) -> None:
    """Append the missing rows to the file."""
    row_bytes = math.prod(shape) * DTYPE.itemsize
    done = min(out.seek(0, os.SEEK_END) // row_bytes, count)
    out.truncate(done * row_bytes)
    words = f"features of {name.rpartition('-')[0]}"
    with ProgressBar(
        total=count, initial=done, desc=words, unit=" frames", delay=2, disable=None
    ) as bar:
        for start in range(done, count, _ROWS_AT_ONCE):
            if stopped():
                out.flush()
                raise StoppedError
            rows = np.arange(start, min(start + _ROWS_AT_ONCE, count))
            features = compute(rows)
            if not np.abs(features).max(initial=0) <= np.finfo(DTYPE).max:
                raise DatasetError(
                    f"{words}: values up to {np.abs(features).max():.4g}; float16 holds up to 65504: set "
                    "train.cache_features to false"
                )
            out.write(np.ascontiguousarray(features, DTYPE).data)
            bar.update(len(rows))
    out.flush()


def _make_room(path: Path, size: int, done: int) -> None:
    """Remove the least recently used files until ``size`` more bytes fit within the limit.

    A process that has mapped a file can use it until the process ends. Unfinished files of other names are counted too,
    and are removed unless a process is writing them.

    Args:
        path: path of the new file.
        size: size of the new file in bytes.
        done: number of bytes that an earlier run has written.
    """
    folder, limit = path.parent, limit_bytes()
    if size > limit:
        raise NoRoomError(
            f"{gigabytes(size)} exceed the cache's limit of {gigabytes(int(limit))}; raise IMITATE_CACHE_GB"
        )
    others = [*folder.glob("*.features"), *folder.glob("*.partial")]
    remove_oldest((file for file in others if file.stem != path.stem), limit - size)
    free = shutil.disk_usage(folder).free
    if free < size - done + _SPARE_BYTES:
        raise NoRoomError(
            f"{folder}: {gigabytes(size - done)} are needed, but {gigabytes(free)} are free; "
            "set IMITATE_CACHE to a folder with room"
        )


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


_VERSION = 1
_TRIED_ROWS = 8


def use_features(
    setup: Setup,
    files: DataFiles,
    say: Callable[[str], None],
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Replace images in a run's training data by features if its networks allow it.

    Call this after the networks have their weights.

    Args:
        setup: setup of the run; its training set and the algorithm's ``preprocess`` are changed.
        files: the run's data files.
        say: called with a line about the cached features of an image key, or about the reason why they are computed
            for each batch.
        stopped: returns true when the run should end.
    """
    algo, data = setup.algo, setup.train_set
    if data is None or not setup.config.train.cache_features:
        return
    for key, nets in sorted(frozen_networks(algo).items()):
        reason = obstacle(algo, key, nets, data) or _different_weights(nets)
        if reason is None:
            try:
                found = _features(algo, key, nets[0], data, files, stopped)
            except StoppedError:
                return
            except NoRoomError as error:
                reason = str(error)
        if reason is not None:
            say(f"{key}: features of the frozen encoder are computed for each batch: {reason}")
            continue
        for field, (features, words) in found.items():
            data.store.replace(field, features, f"{field}: {words}")
            say(f"{field}: {words}")
        _replace_goals(algo, key, nets[0], data.store)
        assert nets[0].frozen_shape is not None
        algo.preprocess.feature_shapes[key] = nets[0].frozen_shape


def feature_seconds(algo: Algo, data: SequenceDataset) -> float:
    """Measure the time to compute the features of one data row in :func:`use_features`.

    Returns:
        seconds for all images of the row; 0 if no encoder is frozen or features cannot replace the images.
    """
    seconds = 0.0
    rows = np.arange(min(_TRIED_ROWS, len(data.store)))
    for key, nets in frozen_networks(algo).items():
        if obstacle(algo, key, nets, data) or _different_weights(nets):
            continue
        for field in (f"obs/{key}", f"next_obs/{key}"):
            if field in data.store.fields:
                images = data.store.rows(field, rows)
                began = time.perf_counter()
                float(_computed(algo, key, nets[0], images).sum())  # waits for the device
                seconds += (time.perf_counter() - began) / len(rows)
    return seconds


def _different_weights(nets: list[KeyEncoder]) -> str | None:
    if len({_weights_digest(net) for net in nets}) > 1:
        return "its networks have different frozen weights; give them one file in backbone_kwargs.pretrained"
    return None


def _features(
    algo: Algo,
    key: str,
    net: KeyEncoder,
    dataset: SequenceDataset,
    files: DataFiles,
    stopped: Callable[[], bool],
) -> dict[str, tuple[Tensor, str]]:
    """Return by field name the features of all rows of a dataset, and a line to print."""
    store = dataset.store
    fields = [name for name in (f"obs/{key}", f"next_obs/{key}") if name in store.fields]
    assert net.frozen_shape is not None
    found = {}
    for field in fields:
        digest = _digest(algo, key, net, store, field, files)
        name = f"{field.replace('/', '-')}-{digest}"

        def compute(rows: NDArray[np.int64], field: str = field) -> NDArray[np.float32]:
            return _computed(algo, key, net, store.rows(field, rows)).cpu().numpy()

        found[field] = features_once(name, len(store), net.frozen_shape, compute, stopped)
    return found


@torch.no_grad()
def _computed(algo: Algo, key: str, net: KeyEncoder, images: Tensor) -> Tensor:
    """Compute float32 features ``(M, *frozen_shape)`` of raw images ``(M, H, W, C)``."""
    prepared = algo.preprocess.prepare_obs({key: images}, (key,))[key]
    return net.frozen_features(prepared).float()


def _replace_goals(algo: Algo, key: str, net: KeyEncoder, store: Store) -> None:
    """Replace the images of goals by features."""
    if key in store.goals:
        goals = store.goals[key]
        parts = [_computed(algo, key, net, part) for part in torch.split(goals, 64)]
        store.goals[key] = torch.cat(parts).half().to(goals.device)


def _digest(
    algo: Algo, key: str, net: KeyEncoder, store: Store, field: str, files: DataFiles
) -> str:
    """Return a digest of everything that the features of a field depend on."""
    section = algo.obs_config.encoder.get(key) or algo.obs_config.encoder.get(
        algo.preprocess.modalities[key]
    )
    core = section.to_dict()["core_kwargs"]
    trunk = dict(core.get("backbone_kwargs") or {})
    for name in ("pretrained", "pretrained_sha256", "lr_scale"):
        trunk[name] = name == "pretrained" and bool(trunk.get(name))
    prepared = algo.preprocess.to_dict()
    contents = []
    for source in store.sources:
        file = files.open(source.path)
        contents.append((file.fingerprint(), file.hdf5_path.stat().st_mtime_ns))
    described = {
        "version": _VERSION,
        "files": contents,
        "demos": [(demo.source, demo.name, demo.length) for demo in store.demos],
        "field": field,
        "core": [core.get("backbone_class"), trunk, core.get("pool_class"), net.frozen_shape],
        "preprocess": [prepared["obs"][key], prepared["steps"], prepared["tensors"]],
        "weights": _weights_digest(net),
    }
    text = json.dumps(described, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor | np.ndarray) else str(value)


def _weights_digest(net: KeyEncoder) -> str:
    """Return a digest of the weights and statistics of the frozen trunk."""
    digest = hashlib.sha256()
    trunk: Mapping[str, Tensor] = net.core.backbone.state_dict()  # type: ignore[union-attr]
    for name, value in trunk.items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
