"""Training on cached features of frozen image encoders instead of images.

If the trunk of an image's encoder is frozen and nothing random comes before it, its features depend on the image alone.
They are computed once per dataset and read by each batch. Validation and acting still use images.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.data import SequenceDataset
from imitate.data.batches.feature_cache import NoRoomError, StoppedError, features_once
from imitate.data.batches.store import Store
from imitate.data.shards.data_files import DataFiles
from imitate.models.key_encoder import KeyEncoder
from imitate.train.frozen import frozen_networks, obstacle
from imitate.train.setup import Setup

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
        setup: the run's; its training set and the algorithm's ``preprocess`` are changed.
        files: the run's data files.
        say: called with a line on what was done, or on why a frozen encoder's features are computed for each batch.
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
                float(_computed(algo, key, nets[0], images).sum())  # wait for the device
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
