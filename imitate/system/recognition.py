"""Identify files and folders of other toolkits by their contents, using only the standard library.

If a path is of the wrong kind, the error message of a command names the kind and the right command. Nothing is
unpickled or imported, and at most a megabyte of a file is read.
"""

import errno
import re
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from imitate.errors import offered
from imitate.system.plain_files import json_value

_MOST_BYTES, _MOST_FILES = 2**20, 1000
_HDF5 = b"\x89HDF\r\n\x1a\n"
"""First bytes of HDF5 files, such as demonstration files."""
_ZIP = b"PK\x03\x04"
"""First bytes of zip archives, such as checkpoints."""
_LFS = b"version https://git-lfs.github.com/spec/"
"""First bytes of the small text that stands for a large file in a clone without Git LFS."""
_PICKLE = b"\x80"
"""First byte of a pickle."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_OWN_ENDINGS = (".hdf5", ".h5", ".pth", ".pt", ".ckpt", ".json", ".zarr", ".zip", ".npz", ".mp4")
_OF_D4RL = ("observations", "actions", "rewards", "terminals")
_OF_OGBENCH = frozenset({"observations", "actions", "terminals"})
_OF_IMITATION = frozenset({"obs", "acts", "terminal", "indices"})
"""Names of the arrays in trajectory files of OGBench and of the package imitation."""
_NOT_OGBENCH = frozenset({"rewards", "next_observations", "timeouts", "dones"})
_OF_STEPS = _OF_OGBENCH | _NOT_OGBENCH | {"obs", "acts", "next_obs", "action", "reward", "done"}
_MOST_SHOWN = 8
INDEX_NAME = "index.json"
"""Name of the index of a folder of shards."""
LEROBOT_WEIGHTS = "model.safetensors"
LEROBOT_ALGOS = {"act": "act", "diffusion": "diffusion_policy"}
"""Algorithms of LeRobot's policies that can be imported, by LeRobot's policy type."""
_NEAREST = {"vqbet": "vq_bet"}
"""Nearest algorithms for LeRobot's policy types that cannot be imported."""


@dataclass(frozen=True)
class Found:
    """Kind of a recognised file or folder.

    Attributes:
        kind: 'lerobot-dataset', 'lerobot-policy', 'run', or another keyword.
        what: description of the kind.
        advice: suggested next step, with a command.
    """

    kind: str
    what: str
    advice: str


_UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError),
    *(zipfile.BadZipFile, zlib.error),
)
"""Exceptions that reading a damaged file may raise."""


def recognise(path: str | Path) -> Found | None:
    """Recognise the kind of the file or folder at a path; None if it is unknown or does not exist."""
    place = Path(path).expanduser()
    checks = _FOLDERS if place.is_dir() else _FILES if place.is_file() else ()
    for check in checks:
        with suppress(*_UNREADABLE):
            found = check(place)
            if found is not None:
                return found
    return None


def diagnosis(path: str | Path) -> str | None:
    """Return one line about a path of the wrong kind, or None if its kind is unknown."""
    found = recognise(path)
    if found is not None:
        return f"{path}: is {found.what}: {found.advice}"
    if Path(path).expanduser().exists():
        return None
    return _url_words(str(path)) or _hub_words(str(path))


def is_lfs_pointer(path: str | Path) -> bool:
    """Return true if a file is a pointer of Git LFS, because its content was not downloaded."""
    with suppress(OSError):
        return _begins_with(path, _LFS)
    return False


def hdf5_words(path: str | Path) -> str | None:
    """Return the error message for an HDF5 file given in place of another kind of file; None for any other file."""
    if not _begins_with(path, _HDF5):
        return None
    here = "give those with --dataset, or " if offered("--dataset") else ""
    return f"{path}: is an HDF5 file, such as demonstrations: {here}look at them with `imitate info {path}`"


def archive_words(path: str | Path) -> str | None:
    """Return the error message for an archive, such as a checkpoint, given in place of another file; else None."""
    if not _begins_with(path, _ZIP):
        return None
    return (
        f"{path}: is an archive, such as a checkpoint: `imitate train --init {path}` begins with its weights, "
        "`imitate train --resume RUN` resumes a run"
    )


def _begins_with(path: str | Path, first: bytes) -> bool:
    return _begin(Path(path).expanduser(), len(first)) == first


def _url_words(text: str) -> str | None:
    """Recognise a URL, from which a conversion to ``Path`` has removed a slash."""
    if not re.match(r"[a-z][a-z0-9+.-]+:/", text):
        return None
    return (
        f"{text}: is an address, which only `imitate train --dataset`, `imitate info` and `imitate dataset stats` "
        "take: download the file first"
    )


def _hub_words(text: str) -> str | None:
    """Recognise the name of a model at Hugging Face such as ``lerobot/act_aloha``, if no such path exists."""
    if not _HUB_ID.fullmatch(text) or text.endswith(_OWN_ENDINGS):
        return None
    if Path(text).parent.is_dir() or text.startswith("runs/"):
        return None
    name = text.rpartition("/")[2]
    return (
        f"{text}: there is no such file or folder; names at the Hugging Face Hub are not fetched: download it first "
        f"(hf download {text} --local-dir {name}; a dataset with --repo-type dataset) and name the folder"
    )


# ---- folders -------------------------------------------------------------------------------------


def _damaged_lerobot(folder: Path) -> Found | None:
    file = folder / "meta" / "info.json"
    if not file.is_file() or _json(file) or not (folder / "data").is_dir():
        return None
    found = _lfs_pointer(file)
    reason, advice = "is not a JSON object", "download it again"
    if found is not None:
        reason, advice = f"is {found.what}", found.advice
    elif not file.stat().st_size:
        reason = "is empty"
    return Found(
        "lerobot-damaged",
        f"a folder with the layout of LeRobot's datasets, but its 'meta/info.json' {reason}",
        advice,
    )


def _lerobot_dataset(folder: Path) -> Found | None:
    info = _json(folder / "meta" / "info.json")
    if "codebase_version" not in info or "features" not in info:
        return None
    return Found(
        "lerobot-dataset",
        f"a dataset of LeRobot ({info['codebase_version']})",
        f"train on it with `imitate config init {folder} --out my.json` and `imitate train --config my.json`, or "
        f"convert it with `imitate dataset convert {folder} {folder.resolve().name}.hdf5`",
    )


def _shards(folder: Path) -> Found | None:
    if b'"imitate-shards"' not in _begin(folder / INDEX_NAME, 200):
        return None
    return Found(
        "shards",
        "a folder of shards with an index",
        f"`imitate train --dataset`, `imitate info` and `imitate dataset stats` take it; here name one of its files, "
        f"or merge all into one file with `imitate dataset merge {folder}/*.hdf5 --out NEW.hdf5`",
    )


def lerobot_policy(path: str | Path) -> Path | None:
    """Return LeRobot's policy folder for this folder, its training folder or a file in it; None for other paths."""
    place = Path(path).expanduser()
    if place.name in ("config.json", LEROBOT_WEIGHTS):
        place = place.parent
    for folder in (
        place,
        place / "pretrained_model",
        place / "checkpoints/last/pretrained_model",
    ):
        with suppress(OSError):
            if _policy_of(_json(folder / "config.json")) is not None:
                return folder
    return None


def _lerobot_policy(folder: Path) -> Found | None:
    policy = lerobot_policy(folder)
    return None if policy is None else _policy_of(_json(policy / "config.json"))


def _policy_of(config: dict[str, Any]) -> Found | None:
    """Identify a policy of LeRobot by its config.json: ``type`` and features, or the form of 2024."""
    features = {"input_features", "output_features", "normalization_mapping"}
    older = {"input_shapes", "input_normalization_modes"}
    if "algo_name" in config or not (
        "type" in config and features & set(config) or older <= set(config)
    ):
        return None
    kind = str(config.get("type", "of 2024"))
    if kind in LEROBOT_ALGOS:
        advice = (
            "`imitate info`, `eval --agent`, `run`, `serve` and `train --init` take it as a checkpoint; "
            "`imitate convert-checkpoint FOLDER my.pth --to imitate` converts it to a checkpoint file"
        )
    else:
        advice = (
            "its weights cannot be loaded here; train a policy on its dataset with "
            f"`imitate config init DATASET_FOLDER --algo {_NEAREST.get(kind, 'flow_policy')} --out my.json` and "
            "`imitate train --config my.json`"
        )
    return Found("lerobot-policy", f"a policy of LeRobot ({kind})", advice)


def _robomimic_run(folder: Path) -> Found | None:
    if not _is_tree(_json(folder / "config.json")) or (folder / "checkpoints").is_dir():
        return None
    if not (folder / "models").is_dir():
        return None
    return Found(
        "robomimic-run",
        "a run folder of robomimic",
        f"its checkpoints are in {folder / 'models'}: `imitate info {folder / 'models'}/model_epoch_N.pth`; "
        f"`imitate train --config {folder / 'config.json'}` trains with its configuration",
    )


def _run(folder: Path) -> Found | None:
    if not _is_tree(_json(folder / "config.json")):
        return None
    return Found("run", "a run", f"look at it with `imitate info {folder}`")


def _runs(folder: Path) -> Found | None:
    if not any(_run(child) for child in islice(folder.iterdir(), _MOST_FILES)):
        return None
    return Found("run", "a folder of runs", f"look at its newest with `imitate info {folder}`")


def _diffusion_policy_run(folder: Path) -> Found | None:
    if not (folder / ".hydra" / "config.yaml").is_file():
        return None
    return Found(
        "hydra-run",
        "a run folder with a configuration of Hydra (Diffusion Policy and others write these)",
        "it cannot be loaded here; train on its zarr dataset with "
        "`imitate config init DATASET.zarr --algo diffusion_policy --out my.json` and `imitate train --config my.json`",
    )


def _original_act(folder: Path) -> Found | None:
    if not (folder / "dataset_stats.pkl").is_file() or not any(folder.glob("policy_*.ckpt")):
        return None
    return Found(
        "act-run",
        "a run folder of the original ACT",
        "its weights cannot be loaded here; train on its episodes with "
        "`imitate config init FOLDER_OF_EPISODES --algo act --out my.json` and `imitate train --config my.json`",
    )


# ---- files ---------------------------------------------------------------------------------------


def _lfs_pointer(file: Path) -> Found | None:
    if not is_lfs_pointer(file):
        return None
    return Found(
        "lfs-pointer",
        "a pointer of Git LFS instead of the file itself",
        "fetch the content with `git lfs pull` in its repository",
    )


def _folder_of_pointers(folder: Path) -> Found | None:
    """Recognise a clone without Git LFS by one of its files."""
    files = (file for file in islice(folder.rglob("*"), _MOST_FILES) if file.is_file())
    pointer = next(filter(is_lfs_pointer, files), None)
    if pointer is None:
        return None
    return Found(
        "lfs-pointer",
        f"a folder whose '{pointer.relative_to(folder)}' is a pointer of Git LFS instead of the file itself",
        "fetch the content with `git lfs pull` in its repository",
    )


def _in_lerobot_dataset(file: Path) -> Found | None:
    for folder in list(file.resolve().parents)[:5]:
        with suppress(OSError, ValueError):
            found = _lerobot_dataset(folder)
            if found is not None:
                shown = _as_written(file, folder)
                return Found(
                    found.kind,
                    f"a file of the LeRobot dataset {shown}",
                    f"name the folder, such as `imitate info {shown}`",
                )
    return None


def _as_written(file: Path, folder: Path) -> Path:
    """Return a parent folder of a file in the same notation as the file."""
    above = len(file.resolve().relative_to(folder).parts)
    return Path(*file.parts[:-above]) if len(file.parts) > above else folder


def _safetensors(file: Path) -> Found | None:
    head = _begin(file, 9)
    size, begins = int.from_bytes(head[:8], "little"), head[8:]
    if begins != b"{" or not 2 <= size <= file.stat().st_size - 8:
        return None
    found = _policy_of(_json(file.with_name("config.json")))
    if found is not None:
        return Found(found.kind, f"the weights of {found.what}", found.advice)
    return Found(
        "safetensors",
        "a file of weights (safetensors)",
        "it holds tensors and not which network they belong to; checkpoints of imitate and robomimic (.pth) are read",
    )


def _configuration(file: Path) -> Found | None:
    if file.suffix != ".json":
        return None
    tree = _json(file)
    found = _policy_of(tree)
    if found is not None:
        return Found(found.kind, f"the configuration of {found.what}", found.advice)
    if not _is_tree(tree):
        return None
    return Found(
        "configuration",
        f"a configuration of the algorithm '{tree['algo_name']}'",
        f"check it with `imitate config check {file}`, train with `imitate train --config {file}`",
    )


def _yaml(file: Path) -> Found | None:
    if file.suffix not in (".yaml", ".yml"):
        return None
    owner = "Diffusion Policy" if b"diffusion_policy" in _begin(file) else "another toolkit"
    return Found(
        "yaml",
        f"a YAML file, such as a configuration of {owner}",
        "configurations here are JSON: begin with a ready one (`imitate config list`): `imitate train --config NAME "
        "--set KEY=VALUE`",
    )


def _stable_baselines(file: Path) -> Found | None:
    if "_stable_baselines3_version" not in _names_in(file):
        return None
    return Found(
        "stable-baselines3",
        "a model of Stable-Baselines3",
        "it cannot be loaded here; train one with `imitate train --config sac/sac_pendulum` or ppo/ppo_cartpole, or "
        "let the model write demonstrations (docs/from_sb3.md)",
    )


def _d3rlpy(file: Path) -> Found | None:
    if file.suffix != ".d3":
        return None
    return Found(
        "d3rlpy",
        "a model of d3rlpy",
        "it cannot be loaded here; train one on its replay buffer, with `imitate config init BUFFER.h5 --algo iql "
        "--out my.json` and `imitate train --config my.json` (docs/from_other_rl.md#from-d3rlpy)",
    )


def _pickle(file: Path) -> Found | None:
    """Identify a pickle by the names in it only: loading it would execute its code."""
    text = _begin(file)
    if text[:1] != _PICKLE:
        return None
    if b"stable_baselines3" not in text:
        if file.suffix not in (".pkl", ".pickle"):
            return None
        return Found(
            "pickle",
            "a pickle of Python objects",
            "it is not loaded here, since loading could run any program; write its data with "
            "imitate.data.DatasetWriter (docs/own_data.md)",
        )
    if b"vec_normalize" in text:
        return Found(
            "stable-baselines3-statistics",
            "statistics (VecNormalize) of Stable-Baselines3",
            "they are not loaded here; normalization is a part of each checkpoint: set train.obs_normalization",
        )
    return Found(
        "stable-baselines3-buffer",
        "a replay buffer of Stable-Baselines3",
        "it is a pickle, which is not loaded here; load it there with model.load_replay_buffer and write it as "
        "demonstrations (docs/from_sb3.md#your-models-and-replay-buffers)",
    )


def _diffusion_policy_checkpoint(file: Path) -> Found | None:
    pickles = [name for name in _names_in(file) if name.endswith("/data.pkl")]
    if not pickles:
        return None
    with zipfile.ZipFile(file) as archive, archive.open(pickles[0]) as stream:
        text = stream.read(_MOST_BYTES)
    if b"state_dicts" not in text or b"pickles" not in text:
        return None
    return Found(
        "diffusion-policy-checkpoint",
        "a checkpoint of Diffusion Policy",
        "it holds Python objects and is not loaded here; train on its zarr dataset with "
        "`imitate config init DATASET.zarr --algo diffusion_policy --out my.json` and `imitate train --config my.json`",
    )


def _bundle(file: Path) -> Found | None:
    if "bundle.json" not in _names_in(file):
        return None
    return Found(
        "bundle",
        "a bundle of `imitate export`",
        "`imitate run`, `serve`, `compare`, `check-deploy` and `info` take it; all else needs the checkpoint that it "
        "was made from",
    )


def _parquet(file: Path) -> Found | None:
    if _begin(file, 4) != b"PAR1":
        return None
    return Found(
        "parquet",
        "a table (parquet)",
        "for a LeRobot dataset, name its folder, which contains meta/info.json",
    )


def _npz(file: Path) -> Found | None:
    """Describe the content of an archive of arrays that is in no known format."""
    shapes = npz_shapes(file)
    if not shapes or set(shapes) >= _OF_IMITATION or is_of_ogbench(file) or is_of_d4rl(file):
        return None
    held = ", ".join(f"{name} {shape}" for name, shape in list(shapes.items())[:_MOST_SHOWN])
    reason = ""
    rows = {name: shape[0] for name, shape in shapes.items() if shape}
    steps = {name: count for name, count in rows.items() if name in _OF_STEPS}
    if len(set(steps.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in steps.items())
        reason = f"; each array needs one row per step, but their numbers of rows differ ({counts})"
    return Found(
        "npz",
        f"an archive of arrays (npz: {held}{' ...' if len(shapes) > _MOST_SHOWN else ''}) of no known layout{reason}",
        f"known layouts are D4RL ({', '.join(_OF_D4RL)}), OGBench ({', '.join(sorted(_OF_OGBENCH))}), imitation "
        f"({', '.join(sorted(_OF_IMITATION))}), and a folder with one file per episode (name the folder); write "
        "recordings of another layout with imitate.data.DatasetWriter "
        "(docs/own_data.md#recordings-of-another-layout)",
    )


def is_of_ogbench(file: Path) -> bool:
    """Return true for OGBench's trajectories; other files with rewards or several flags have other meanings."""
    shapes = npz_shapes(file)
    if not set(shapes) >= _OF_OGBENCH or set(shapes) & _NOT_OGBENCH:
        return False
    return len({shape[:1] for shape in shapes.values()}) == 1


def is_of_d4rl(file: Path) -> bool:
    """Return true for D4RL's flat arrays in an ``.npz``, with one row per step."""
    shapes = npz_shapes(file)
    return set(shapes) >= set(_OF_D4RL) and len({shapes[name][:1] for name in _OF_D4RL}) == 1


def npz_names(file: Path) -> list[str]:
    """Return the names of the arrays in an ``.npz``; [] if it is not an archive."""
    with suppress(*_UNREADABLE):
        return [name[:-4] for name in _names_in(file) if name.endswith(".npy")]
    return []


def npz_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array in an ``.npz``, from its header; {} if it is not an archive of arrays only."""
    names = _names_in(file)
    if not names or not all(name.endswith(".npy") for name in names):
        return {}
    found = {}
    with zipfile.ZipFile(file) as archive:
        for name in names:
            with archive.open(name) as stream:
                head = stream.read(4096)
            shape = re.search(rb"'shape': \(([\d, ]*)\)", head)
            if not head.startswith(b"\x93NUMPY") or shape is None:
                return {}
            numbers = shape[1].decode().replace(",", " ").split()
            found[name[:-4]] = tuple(map(int, numbers))
    return found


def _names_in(file: Path) -> list[str]:
    if _begin(file, 4) != b"PK\x03\x04":
        return []
    with zipfile.ZipFile(file) as archive:
        return archive.namelist()


def _begin(file: Path, size: int = _MOST_BYTES) -> bytes:
    if file.exists() and not file.is_file():
        raise OSError(
            errno.EINVAL, "it is not a regular file", str(file)
        )  # reading a pipe would block
    with file.open("rb") as stream:
        return stream.read(size)


def _json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or {} if the file is missing or contains something else."""
    if not file.is_file():
        return {}
    text = _begin(file, _MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        return {}
    try:
        tree = json_value(text)
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _is_tree(tree: dict[str, Any]) -> bool:
    """Return true if JSON is a configuration: robomimic's tree, or a part of it."""
    return isinstance(tree.get("algo_name"), str)


_Check = Callable[[Path], Found | None]
_FOLDERS: tuple[_Check, ...] = (
    _lerobot_dataset,
    _damaged_lerobot,
    _shards,
    _lerobot_policy,
    _robomimic_run,
    _run,
    _diffusion_policy_run,
    _original_act,
    _runs,
    _folder_of_pointers,
)
_FILES: tuple[_Check, ...] = (
    _lfs_pointer,
    _in_lerobot_dataset,
    _safetensors,
    _configuration,
    _yaml,
    _d3rlpy,
    _stable_baselines,
    _pickle,
    _diffusion_policy_checkpoint,
    _bundle,
    _npz,
    _parquet,
)
