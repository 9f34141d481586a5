"""Files of other toolkits are named, with the next command."""

import json
import zipfile
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from imitate import policy_from_checkpoint
from imitate.errors import CheckpointError
from imitate.system.recognition import diagnosis, recognise
from tests.calling import call

ACT = {"type": "act", "input_features": {}, "output_features": {}, "n_obs_steps": 1}
OLD_ACT = {"input_shapes": {}, "output_shapes": {}, "input_normalization_modes": {}}
TREE = {"algo_name": "bc", "experiment": {"name": "x"}, "train": {}, "algo": {}, "observation": {}}
INFO = {"codebase_version": "v3.0", "features": {}, "fps": 10}
BOMB = b"\x80\x04cbuiltins\nexit\n(tR."
"""A pickle that ends the process which loads it."""
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n"


def write(path, content=b""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def safetensors():
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


def archive(members):
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, text in members.items():
            file.writestr(name, text)
    return content.getvalue()


FILES = {
    "lr/meta/info.json": INFO,
    "lr/data/chunk-000/file-000.parquet": b"PAR1....",
    "act/config.json": ACT,
    "act/model.safetensors": safetensors(),
    "old/config.json": OLD_ACT,
    "vqbet/config.json": {**ACT, "type": "vqbet"},
    "training/checkpoints/last/pretrained_model/config.json": {**ACT, "type": "pi0"},
    "alone/weights.safetensors": safetensors(),
    "run/config.json": TREE,
    "run/checkpoints": None,
    "robomimic/config.json": TREE,
    "robomimic/models": None,
    "hydra/.hydra/config.yaml": b"name: x",
    "task.yaml": b"_target_: diffusion_policy.workspace.x",
    "latest.ckpt": archive({"archive/data.pkl": b"cfg state_dicts pickles"}),
    "ppo.zip": archive({"_stable_baselines3_version": "2.3.0", "policy.pth": b""}),
    "iql.d3": b"PK\x03\x04",
    "buffer.pkl": b"\x80\x04\x95cstable_baselines3.common.buffers\nReplayBuffer",
    "vec.pkl": b"\x80\x04cstable_baselines3.common.vec_env.vec_normalize\nVecNormalize",
    "own.pkl": BOMB,
    "aloha/dataset_stats.pkl": b"",
    "aloha/policy_best.ckpt": b"",
    "bare.parquet": b"PAR1....",
    "void/meta/info.json": b"",
    "void/data": None,
    "clone/meta/info.json": LFS,
    "clone/data": None,
    "episodes/episode_0.hdf5": LFS,
    "trained/run/1/checkpoints/last.pth": LFS,
    **{f"lfs.{ending}": LFS for ending in ("hdf5", "npz", "pth", "json", "mp4", "parquet")},
}
"""One of each; None is a folder."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    for name, content in FILES.items():
        (root / name).mkdir(parents=True) if content is None else write(root / name, content)
    with h5py.File(root / "demos.hdf5", "w") as file:
        file.create_group("data")
    np.savez_compressed(
        root / "arrays.npz", observations=np.zeros((9, 4)), actions=np.zeros((8, 2))
    )
    torch.save({"a": torch.ones(1)}, root / "last.pth")
    return root


KINDS = """
lerobot-dataset: lr lr/meta/info.json lr/data/chunk-000/file-000.parquet
lerobot-policy: act act/config.json act/model.safetensors old vqbet training
safetensors: alone/weights.safetensors
run: run
configuration: run/config.json
robomimic-run: robomimic
hydra-run: hydra
yaml: task.yaml
diffusion-policy-checkpoint: latest.ckpt
stable-baselines3: ppo.zip
d3rlpy: iql.d3
stable-baselines3-buffer: buffer.pkl
stable-baselines3-statistics: vec.pkl
pickle: own.pkl
act-run: aloha
parquet: bare.parquet
npz: arrays.npz
lerobot-damaged: void clone
lfs-pointer: episodes trained trained/run/1 lfs.hdf5 lfs.npz lfs.pth lfs.json lfs.mp4 lfs.parquet
"""


@pytest.mark.parametrize("row", KINDS.strip().splitlines())
def test_kinds(world, row):
    kind, _, paths = row.partition(": ")
    for path in paths.split():
        assert recognise(world / path).kind == kind
        assert "\n" not in (diagnosis(world / path) or "")


def test_words(world, monkeypatch):
    monkeypatch.chdir(world)
    assert diagnosis("lr") == (
        "lr: is a dataset of LeRobot (v3.0): train on it with `imitate config init lr --out my.json` and "
        "`imitate train --config my.json`, or convert it with `imitate dataset convert lr lr.hdf5`"
    )
    assert "name the folder, such as `imitate info lr`" in diagnosis("lr/meta/info.json")
    assert diagnosis("act").startswith(
        "act: is a policy of LeRobot (act): `imitate info`, `eval --agent`, `run`, `serve` and `train --init` take it"
    )
    assert "--algo vq_bet " in diagnosis("vqbet")
    assert "(pi0)" in diagnosis("training")
    assert "--algo flow_policy" in diagnosis("training")


FOREIGN = [
    b"", b"{", b"[1]", b'{"a": 1}', b'{"algo_name": 3}', b"\xff\xfe", b"[" * 100_000, b"PK\x03\x04"
]  # fmt: skip


def test_a_damaged_archive_of_arrays_is_nothing_known(tmp_path):
    path, kinds = tmp_path / "a.npz", set()
    np.savez_compressed(path, a=np.arange(9.0))
    whole = path.read_bytes()
    for at in range(36, 60, 2):
        path.write_bytes(whole[:at] + b"\xff\xff" + whole[at + 2 :])
        found = recognise(path)
        kinds.add(None if found is None else found.kind)
    assert kinds == {"npz", None}  # where the header itself cannot be unpacked, nothing is known


@pytest.mark.parametrize("name", ["config.json", "meta/info.json", "model.safetensors", "a.ckpt"])
def test_damaged_or_foreign_contents_are_nothing_known(tmp_path, name):
    for content in FOREIGN:
        write(tmp_path / "thing" / name, content)
        assert recognise(tmp_path / "thing") is None, content[:20]
        assert recognise(tmp_path / "thing" / name) is None, content[:20]


def test_names_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = diagnosis("lerobot/act_aloha")
    assert "hf download lerobot/act_aloha --local-dir act_aloha" in words
    Path("lerobot").mkdir()
    others = ("datasets/lift.hdf5", "runs/best.pth", "/etc/nothing", "../a", "a")
    for text in ("lerobot/act_aloha", *others):
        assert diagnosis(text) is None


COMMANDS = """
info act | this policy of LeRobot cannot be converted: config.json: input_features is missing
info lr/meta/info.json | is a file of the LeRobot dataset lr
info vqbet | this policy of LeRobot cannot be converted: a policy of type 'vqbet' cannot be read
info robomimic | is a run folder of robomimic
info ppo.zip | is a model of Stable-Baselines3
info latest.ckpt | is a checkpoint of Diffusion Policy
info lerobot/pusht | hf download lerobot/pusht
info iql.d3 | is a model of d3rlpy
info buffer.pkl | is a replay buffer of Stable-Baselines3
info own.pkl | is a pickle of Python objects
info void | layout of LeRobot's datasets, but its 'meta/info.json' is empty: download
dataset doctor clone | 'meta/info.json' is a pointer of Git LFS instead of the file itself: fetch
info arrays.npz | (npz: observations (9, 4), actions (8, 2)) of no known layout; each array needs one row per step
info lfs.pth | is a pointer of Git LFS instead of the file itself: fetch the content with `git lfs pull`
dataset stats lfs.hdf5 | is a pointer of Git LFS
dataset stats episodes | is a folder whose 'episode_0.hdf5' is a pointer of Git LFS instead of the file itself: fetch
info trained | is a folder whose 'run/1/checkpoints/last.pth' is a pointer of Git LFS
eval --agent lfs.pth | is a pointer of Git LFS
train --config bc/bc --dataset lfs.npz | is a pointer of Git LFS
config check lfs.json | is a pointer of Git LFS
eval --agent act/config.json | this policy of LeRobot cannot be converted: config.json: input_features is missing
eval --agent vqbet | is a policy of LeRobot (vqbet)
eval --agent lr | is a dataset of LeRobot (v3.0): train on it
eval --agent ppo.zip | is a model of Stable-Baselines3
eval --agent iql.d3 | is a model of d3rlpy
eval --agent vec.pkl | is statistics (VecNormalize)
eval --agent own.pkl | is a pickle of Python objects
eval --agent lerobot/act_aloha | hf download lerobot/act_aloha
eval --agent demos.hdf5 | is an HDF5 file, such as demonstrations: look at them with `imitate info
train --config bc/bc --dataset buffer.pkl | load_replay_buffer
train --config bc/bc --dataset ppo.zip | is a model of Stable-Baselines3
train --config bc/bc --dataset act | is a policy of LeRobot (act)
train --config bc/bc --dataset lerobot/pusht | hf download lerobot/pusht
train --config act/config.json | is the configuration of a policy of LeRobot (act)
train --config task.yaml | is a YAML file, such as a configuration of Diffusion Policy
train --config demos.hdf5 | is an HDF5 file, such as demonstrations
train --config last.pth | is an archive, such as a checkpoint: `imitate train --init last.pth`
train --resume act | is a policy of LeRobot (act)
dataset convert buffer.pkl new.hdf5 | is a replay buffer of Stable-Baselines3
dataset doctor act | is a policy of LeRobot (act)
dataset doctor lr/meta/info.json | is a file of the LeRobot dataset lr
config check task.yaml | is a YAML file
config check last.pth | is an archive, such as a checkpoint
"""


@pytest.mark.parametrize("line", COMMANDS.strip().splitlines())
def test_commands_name_what_lies_there(world, monkeypatch, line):
    args, _, words = line.partition(" | ")
    monkeypatch.chdir(world)
    done = call(args, code=2)
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "act/model.safetensors",
            "this policy of LeRobot cannot be converted: config.json: input_features is missing",
        ),
        ("latest.ckpt", "checkpoint of Diffusion Policy"),
        ("last.pth", "not a checkpoint of this toolkit"),
    ],
)
def test_policy_from_checkpoint_names_what_lies_there(world, path, words):
    with pytest.raises(CheckpointError, match=words):
        policy_from_checkpoint(ckpt_path=world / path)


def test_an_address_is_named_as_such():
    assert "is an address, which only" in diagnosis("s3://bucket/demos.hdf5")
    assert "is an address, which only" in diagnosis(Path("https://host/demos.hdf5"))
