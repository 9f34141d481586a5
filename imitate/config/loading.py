"""Load a `Config` from a ready configuration, a JSON file, a JSON text or a dict; robomimic's are converted."""

import logging
import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from imitate.config.config import Config, parse_override, put
from imitate.errors import ConfigError, FileError
from imitate.system.plain_files import MAX_SETTINGS, check_depth, json_fault, json_value, read_text
from imitate.system.recognition import archive_words, diagnosis, hdf5_words, recognise

SCHEMA = "schema"


def folder() -> Path:
    """Return the folder of bundled configurations: in the installed package, or at the root of a clone."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def names() -> list[str]:
    """Return the names of all bundled configurations, such as ``robosuite/lift/bc``."""
    root = folder()
    files = (path.relative_to(root) for path in root.rglob("*.json"))
    return sorted(path.with_suffix("").as_posix() for path in files if path.parts[0] != SCHEMA)


def bundled(name: str) -> Path | None:
    """Return the file of a bundled configuration, or None if no configuration has this name.

    Args:
        name: ``configs/robosuite/lift/bc.json`` or ``robosuite/lift/bc``.
    """
    short = (
        name.replace("\\", "/").removeprefix("./").removeprefix("configs/").removesuffix(".json")
    )
    parts = short.split("/")
    if {"", ".", ".."} & set(parts) or parts[0] == SCHEMA:
        return None
    path = folder() / f"{short}.json"  # reading the file is faster than a search in names()
    return path if path.is_file() else None


logger = logging.getLogger(__name__)

STRAY_KEYS = {
    "experiment.mse": "not supported",
    "algo.optim_params.*.num_train_batches": "written by robomimic's training script, has no effect",
    "algo.optim_params.*.num_epochs": "written by robomimic's training script, has no effect",
}
"""Keys of robomimic's files that imitate does not use; they are dropped with a warning. ``*`` matches any one key."""

FLAT_ENCODER_KEYS = {
    "visual_core",
    "visual_core_kwargs",
    "visual_feature_dimension",
    "use_spatial_softmax",
    "spatial_softmax_kwargs",
    "obs_randomizer_class",
    "obs_randomizer_kwargs",
}
"""Image encoder keys that were directly in ``observation.encoder`` before 0.2."""

CORE_KEYS = ("feature_dimension", "pool_class", "pool_kwargs")
"""Keys that were beside ``core_kwargs`` in 0.2 and are now inside it."""


def migrate(tree: dict[str, Any], *, quiet: bool = False) -> dict[str, Any]:
    """Convert a tree of robomimic or of an older version of imitate to the current form.

    Args:
        tree: the tree, which is changed in place.
        quiet: drop unused keys without a warning.
    """
    tree.pop("$schema", None)
    for pattern, reason in STRAY_KEYS.items():
        for path in _drop(tree, pattern.split("."), ()):
            if not quiet:
                logger.warning("%s: %s: dropped", path, reason)
    _update_observation(tree.get("observation"))
    return tree


def _drop(node: object, pattern: list[str], path: tuple[str, ...]) -> list[str]:
    if not isinstance(node, dict):
        return []
    keys = list(node) if pattern[0] == "*" else [key for key in pattern[:1] if key in node]
    if len(pattern) == 1:
        for key in keys:
            del node[key]
        return [".".join((*path, key)) for key in keys]
    return [found for key in keys for found in _drop(node[key], pattern[1:], (*path, key))]


def _update_observation(observation: object) -> None:
    if not isinstance(observation, dict):
        return
    if "modalities" not in observation and "encoder" not in observation:
        for (
            child
        ) in observation.values():  # hierarchical algorithms have their sections one level deeper
            _update_observation(child)
        return
    for group in _objects_in(observation.get("modalities")):
        if "image" in group:
            group["rgb"] = group.pop("image")
    encoder = observation.get("encoder")
    if isinstance(encoder, dict) and FLAT_ENCODER_KEYS & encoder.keys():
        observation["encoder"] = {"rgb": _encoder_from_flat_keys(encoder)}
    for one in _objects_in(observation.get("encoder")):
        _move_into_core_kwargs(one)


def _objects_in(node: object) -> list[dict[str, Any]]:
    values = node.values() if isinstance(node, dict) else ()
    return [value for value in values if isinstance(value, dict)]


def _move_into_core_kwargs(encoder: dict[str, Any]) -> None:
    moved = {key: encoder.pop(key) for key in CORE_KEYS if key in encoder}
    if moved and encoder.get("core_class"):  # without a core, these keys had no effect
        encoder["core_kwargs"] = {**moved, **(encoder.get("core_kwargs") or {})}


def _encoder_from_flat_keys(old: dict[str, Any]) -> dict[str, Any]:
    core: dict[str, Any] = {"backbone_kwargs": {}, "pool_kwargs": {}}
    if "visual_feature_dimension" in old:
        core["feature_dimension"] = old["visual_feature_dimension"]
    if "visual_core" in old:
        core["backbone_class"] = old["visual_core"]
    if old.get("use_spatial_softmax", True):
        core["pool_class"] = "SpatialSoftmax"
    for new, flat, keys in (
        ("backbone_kwargs", "visual_core_kwargs", ("pretrained", "input_coord_conv")),
        (
            "pool_kwargs",
            "spatial_softmax_kwargs",
            ("num_kp", "learnable_temperature", "temperature", "noise_std"),
        ),
    ):
        values = old.get(flat) or {}
        core[new] = {key: values[key] for key in keys if key in values}
    kept: dict[str, Any] = {
        key: old[key] for key in ("obs_randomizer_class", "obs_randomizer_kwargs") if key in old
    }
    return {"core_class": "VisualCore", "core_kwargs": core, **kept}


MOST_NEAR = 3
"""Largest number of suggested names in the error message for a configuration that does not exist."""
Source = str | os.PathLike[str] | Mapping[str, Any] | Config


def load_config(source: Source, overrides: Iterable[str] = ()) -> Config:
    """Read and check a configuration.

    Args:
        source: path of a JSON file, name of a bundled configuration (``robosuite/lift/bc``), JSON text that begins with
            ``{``, or a dict; a tree as in robomimic. Missing keys have their defaults.
        overrides: texts ``"a.b=value"``, which replace values of the source one after another.

    Raises:
        ConfigError: the message has one line per problem: the file, the key, the value found and the value wanted.
    """
    tree, label, folder = _read(source)
    tree = migrate(tree)
    written, laid = deepcopy(tree), dict[str, str]()
    for text in overrides:
        algo_name = tree.get("algo_name")
        try:
            path, value = parse_override(
                text, Config, algo_name if isinstance(algo_name, str) else None
            )
            put(tree, path, value)
        except ConfigError as error:
            raise ConfigError(f"--set {text}: {error}") from None
        laid[path] = text
    try:
        return Config.build(tree, folder=folder)
    except ConfigError as error:
        if laid and _is_good(written):
            label = f"{label} with --set {' --set '.join(laid.values())}".strip()
        lines = [_blamed(line, label, laid) for line in str(error).splitlines()]
        raise ConfigError("\n".join(lines)) from None


def _is_good(tree: dict[str, Any]) -> bool:
    try:
        Config.build(tree)
    except ConfigError:
        return False
    return True


def _blamed(problem: str, label: str, laid: Mapping[str, str]) -> str:
    """Put the origin before a problem: the override ``laid[key]`` if the key was overridden, else the file."""
    key = problem.partition(" ")[0].rstrip(":,")
    for path, text in reversed(list(laid.items())):
        if f"{path}.".startswith(f"{key}.") or f"{key}.".startswith(f"{path}."):
            return f"--set {text}: {problem}"
    return f"{label}: {problem}" if label else problem


def read_tree(source: Source, *, quiet: bool = False) -> dict[str, Any]:
    """Read a tree and rename its old keys, without checks. With ``quiet``, dropped keys cause no warning."""
    tree, _, folder = _read(source)
    data = (tree.get("train") or {}).get("data")
    if folder is not None and isinstance(data, str) and not Path(data).expanduser().is_absolute():
        # find data relative to the JSON file, as load_config does
        beside = folder / data
        if beside.exists() and not Path(data).exists():
            tree["train"]["data"] = str(beside)
    return migrate(tree, quiet=quiet)


def _read(source: Source) -> tuple[dict[str, Any], str, Path | None]:
    """Return the tree (a private copy), its name for error messages, and the folder of the file."""
    if isinstance(source, Config):
        return source.to_dict(), "", source.folder
    if isinstance(source, Mapping):
        check_depth(source, "the configuration", MAX_SETTINGS)
        return deepcopy(dict(source)), "", None
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return _parse(source, "JSON text"), "", None
    path = Path(source)
    if not path.is_file():
        found = bundled(str(source))
        if found is None:
            known = diagnosis(path) if path.exists() else None
            if known is not None:
                raise ConfigError(known)
            what = "is a folder" if path.is_dir() else "there is no such file"
            raise ConfigError(
                f"{path}: {what}, and no bundled configuration has this name; {_near(path)}"
            )
        path = found
    try:
        text = read_text(path)
    except (FileError, OSError) as error:
        known = hdf5_words(path) or archive_words(path)
        raise ConfigError(known or str(error)) from None
    kind = recognise(path)
    if kind is not None and kind.kind != "configuration":
        raise ConfigError(f"{path}: is {kind.what}: {kind.advice}")
    return _parse(text, str(path)), str(path), path.resolve().parent


def ready_for(algorithm: str | None) -> str:
    """Return the name of a bundled configuration of an algorithm, preferably not for robosuite; '' if there is none."""
    found = [name for name in names() if algorithm in name.split("/")]
    wanted = (f"{algorithm}/{algorithm}", f"{algorithm}/{algorithm}_pendulum")
    own = [name for name in found if name.startswith(f"{algorithm}/")]
    return next((name for name in wanted if name in found), next(iter([*own, *found]), ""))


def _near(path: Path) -> str:
    """Suggest the most similar file in the folder and bundled names, or else the command that lists bundled names."""
    beside = [] if path.is_dir() else sorted(path.parent.glob("*.json"))
    files = get_close_matches(path.name, [one.name for one in beside], n=1)
    bundled_names = names()
    by_end: dict[str, list[str]] = {}
    for name in bundled_names:
        by_end.setdefault(name.rpartition("/")[2], []).append(name)
    wanted = path.as_posix().removesuffix(".json")
    first, _, last = wanted.partition("/")
    wanted = first if first == last else wanted
    found = [name for name in bundled_names if name.endswith(f"/{wanted}")]
    found += get_close_matches(wanted, bundled_names, n=1)
    algorithms = {name.partition("/")[0] for name in bundled_names if "/" not in wanted}
    found += [ready_for(name) for name in get_close_matches(wanted, algorithms, n=1)]
    for end in get_close_matches(wanted.rpartition("/")[2], by_end, n=1, cutoff=0.8):
        found += [name for name in by_end[end] if name.startswith(f"{wanted.partition('/')[0]}/")]
        found += by_end[end]
    near = [*(str(path.parent / name) for name in files), *dict.fromkeys(found)][:MOST_NEAR]
    if near:
        return f"did you mean {' or '.join(repr(name) for name in near)}?"
    return f"`imitate config list` prints the {len(bundled_names)} bundled names"


def _parse(text: str, label: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in pairs:
            if key in out:
                raise ConfigError(f"{label}: key '{key}' occurs twice in one object: remove one")
            out[key] = value
        return out

    try:
        tree = json_value(text, MAX_SETTINGS, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{label}: {json_fault(error)}") from None
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{label}: the JSON text must be an object {{...}}, but is a {type(tree).__name__}"
        )
    check_depth(tree, label)
    return tree
