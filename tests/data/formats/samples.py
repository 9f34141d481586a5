"""A small dataset of each format, as whole as it can be: images, masks, attributes, text."""

import json
from pathlib import Path
from shutil import copy

import h5py
import numpy as np
import zarr
from PIL import Image

from imitate.data import DatasetWriter, Episode
from imitate.data.file.image_codec import encode_jpeg, write_images
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert

FIXTURES = Path(__file__).with_name("fixtures")
LENGTH = 6
ENV = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": "Panda"}}


def smooth(random, length, height=24, width=32):
    """Frames that compress: (T, H, W, 3) ramps."""
    ramp = np.linspace(0, 200, height * width).reshape(height, width)
    frames = ramp[None, :, :, None] + random.integers(0, 50, (length, 1, 1, 3))
    return frames.astype(np.uint8)


def robomimic(path):
    random = np.random.default_rng(0)
    with DatasetWriter(path, ENV, control_freq=20, overwrite=True) as writer:
        for _ in range(3):
            seen = {
                "object": random.normal(size=(LENGTH + 1, 5)).astype(np.float32),
                "agentview_image": smooth(random, LENGTH + 1, 36, 40),
            }
            last = np.arange(LENGTH) == LENGTH - 1
            writer.append_episode(
                Episode(
                    obs={key: value[:-1] for key, value in seen.items()},
                    next_obs={key: value[1:] for key, value in seen.items()},
                    actions=random.uniform(-1, 1, (LENGTH, 7)),
                    rewards=last.astype(float),
                    terminals=last,
                    timeouts=~last & False,
                    states=random.normal(size=(LENGTH, 9)),
                    attrs={"language": "lift it", "model_file": "<mujoco/>" * 40},
                )
            )
        writer.add_filter_key("train", ["demo_0", "demo_1"])
    return path


def with_jpegs(path):
    """Ours, with a camera in JPEGs and one in gzip."""
    robomimic(path)
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            frames = smooth(np.random.default_rng(1), LENGTH)
            write_images(demo["obs"], "wrist_image", frames, "jpeg", 90)
            write_images(demo["obs"], "side_image", frames, "gzip", 90)
    return path


def robosuite(path):
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update({"env": "Lift", "env_info": '{"robots": "Panda"}', "date": "1-1-2026"})
        for number in range(2):
            demo = data.create_group(f"demo_{number}")
            demo.attrs.update({"model_file": "<mujoco/>" * 200, "ep_meta": "{}"})
            demo["states"] = np.arange(40.0).reshape(5, 8)
            demo["actions"] = np.zeros((5, 7))
    return path


def mimicgen(path, names=("demo_0", "demo_1"), states="states"):
    env = {"env_name": "Stack_D0", "type": 1, "env_kwargs": {"robots": ["Panda"]}}
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(env)
        for name in names:
            group = data.create_group(name)
            group.attrs["num_samples"] = 4
            group["actions"] = np.full((4, 7), int(name[5:]) / 100)
            group.create_dataset("obs/object", data=np.ones((4, 3)), compression="gzip")
            group[states] = np.arange(20.0).reshape(4, 5)
            group["src_demo_inds"] = np.array([3, 1])
            for key in ("eef_pose", "object_poses/cube"):
                group[f"datagen_info/{key}"] = np.tile(np.eye(4), (4, 1, 1))
            group["datagen_info/subtask_term_signals/grasp"] = np.array([0, 0, 1, 1])
            group["datagen_info"].attrs["env_interface_name"] = "MG_Stack"
    return path


def libero_task(path, instruction="pick up the book", late=True, convention="opengl", base=0.0):
    """Five steps. States hold [time, 7 joints, 2]; joints at time t are t, so that a late row reads t + 1."""
    env = {"type": 1, "env_name": "Libero_Task", "problem_name": "p", "bddl_file": "/x/a.bddl"}
    time = np.arange(5) + base
    seen = time + 1 if late else time
    image = np.zeros((5, 4, 6, 3), dtype=np.uint8)
    image[:, 0] = 200  # the first row, which is the lowest for OpenGL
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({**env, "env_kwargs": {}})
        data.attrs["problem_info"] = json.dumps({"language_instruction": instruction})
        data.attrs["bddl_file_name"] = f"/somewhere/{path.stem}.bddl"
        data.attrs["macros_image_convention"] = convention
        for number in range(2):
            group = data.create_group(f"demo_{number}")
            group.attrs.update({"num_samples": 5, "model_file": "<x/>", "init_state": np.zeros(10)})
            group["actions"] = np.stack([time] * 7, axis=1) / 100
            group["states"] = np.stack([time] * 10, axis=1)
            group["robot_states"] = np.stack([seen] * 9, axis=1)
            group["rewards"] = group["dones"] = (time == time[-1]).astype(np.uint8)
            group["obs/joint_states"] = np.stack([seen] * 7, axis=1)
            group["obs/gripper_states"] = np.stack([seen] * 2, axis=1)
            group["obs/agentview_rgb"] = image
    return path


def libero(path):
    path.mkdir()
    for task in ("open_it", "close_it"):
        libero_task(path / f"{task}_demo.hdf5", task)
    return path


def aloha_episode(path, sim=True, image=None, number=0, camera="top"):
    """Four steps."""
    time = np.arange(4) + number
    with h5py.File(path, "w") as file:
        file.attrs.update({} if sim is None else {"sim": sim})
        file["observations/qpos"] = np.stack([time] * 14, axis=1).astype(np.float32)
        file["observations/qvel"] = np.zeros((4, 14), dtype=np.float32)
        plain = np.full((4, 8, 10, 3), number, dtype=np.uint8)
        file[f"observations/images/{camera}"] = plain if image is None else image
        file["action"] = np.stack([time] * 14, axis=1).astype(np.float32) / 10
    return path


def padded(jpegs):
    """Rows of bytes, as long as the longest."""
    rows = np.zeros((len(jpegs), max(map(len, jpegs))), np.uint8)
    for row, data in zip(rows, jpegs, strict=True):
        row[: len(data)] = data
    return rows


def aloha(path):
    path.mkdir()
    for number in range(2):
        frames = smooth(np.random.default_rng(number), 4)
        image = padded([encode_jpeg(frame[..., ::-1], 90) for frame in frames])
        file = aloha_episode(path / f"episode_{number}.hdf5", False, image, number, "cam_high")
        with h5py.File(file, "a") as opened:
            opened.attrs["compress"] = True
    return path


def diffusion_policy(path):
    rows = np.arange(9, dtype=np.float32)
    root = zarr.open_group(str(path), mode="w", zarr_format=2)
    root.create_array("meta/episode_ends", data=np.array([4, 9]))
    root.create_array("data/action", data=np.stack([rows, -rows], axis=1), chunks=(4, 2))
    root.create_array("data/img", data=smooth(np.random.default_rng(0), 9), chunks=(4, 24, 32, 3))
    return path


def zipped(path):
    source = diffusion_policy(path.with_name("unzipped.zarr"))
    with zarr.storage.ZipStore(path, mode="w") as store:
        root = zarr.open_group(store, mode="w", zarr_format=2)
        for key, array in (("data/action", "data/action"), ("meta/episode_ends",) * 2):
            root.create_array(key, data=zarr.open_group(str(source), mode="r")[array][:])
    return path


def converted(name, **options):
    """Our own export of :func:`robomimic`."""

    def make(path):
        source = robomimic(path.parent / "source.hdf5")
        convert(source, path, to_format=name, **options)
        return path

    return make


def ogbench(path):
    rows = np.arange(11, dtype=np.float32)[:, None]
    np.savez_compressed(
        path,
        observations=rows * [1, 10],
        actions=rows / 10,
        qpos=rows,
        terminals=rows[:, 0] % 6 == 5,
    )
    return path


def recorded(name):
    def make(path):
        copy(FIXTURES / name, path)
        return path

    return make


def foreign(folder):
    """Files and folders that are not a dataset at all."""
    folder.mkdir()
    made = {name: folder / name for name in ("photo.png", "empty", "notes.txt", "files.zip")}
    Image.fromarray(smooth(np.random.default_rng(0), 1)[0]).save(made["photo.png"])
    made["empty"].touch()
    made["notes.txt"].write_text("nothing but words\n" * 50)
    np.savez(folder / "files", x=np.ones(3))
    (folder / "files.npz").rename(made["files.zip"])
    made["others.hdf5"] = folder / "others.hdf5"
    with h5py.File(made["others.hdf5"], "w") as file:
        file["data/table"] = np.array([(1, 2.0)], dtype=[("a", int), ("b", float)])
        file["data/demo_0/actions"] = np.array([b"left", b"right"])
        file["observations"] = h5py.SoftLink("/nowhere")
        file["data/again"] = h5py.SoftLink("/data")
        file["mask"] = 3
    made["signature.hdf5"] = folder / "signature.hdf5"
    made["signature.hdf5"].write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(300))
    made["folder"] = folder / "folder"
    (made["folder"] / "meta").mkdir(parents=True)
    (made["folder"] / "data").mkdir()
    (made["folder"] / "meta" / "info.json").write_text('["codebase_version"]')
    (made["folder"] / "data" / "metadata.json").write_text('"data_format"')
    (made["folder"] / "episode_0.hdf5").write_text("none")
    made["empty folder"] = folder / "empty folder"
    made["empty folder"].mkdir()
    return made


def npz_episodes(path):
    random = np.random.default_rng(0)
    path.mkdir()
    for number in range(3):
        seen = {"state": random.normal(size=(LENGTH, 4)), "images": smooth(random, LENGTH)}
        np.savez(path / f"ep_{number}.npz", actions=random.uniform(-1, 1, (LENGTH, 2)), **seen)
    return path


MAKERS = {
    "robomimic": ("robomimic", "d.hdf5", robomimic),
    "robomimic, jpeg and gzip": ("robomimic", "d.hdf5", with_jpegs),
    "robosuite": ("robosuite", "demo.hdf5", robosuite),
    "mimicgen": ("mimicgen", "demo.hdf5", mimicgen),
    "libero": ("libero", "goal", libero),
    "aloha": ("aloha", "task", aloha),
    "npz-episodes": ("npz-episodes", "eps", npz_episodes),
    "d4rl": ("d4rl", "d.hdf5", recorded("walker2d.hdf5")),
    "d3rlpy 2": ("d3rlpy", "d.h5", recorded("d3rlpy_vectors.h5")),
    "imitation": ("imitation", "d.npz", recorded("cartpole.npz")),
    "ogbench": ("ogbench", "cube-single-play-v0.npz", ogbench),
    "diffusion-policy": ("diffusion-policy", "d.zarr", diffusion_policy),
    "diffusion-policy, ours": ("diffusion-policy", "d.zarr", converted("diffusion-policy")),
    "diffusion-policy, zip": ("diffusion-policy", "d.zarr.zip", zipped),
    "minari, ours": ("minari", "lift-v0", converted("minari")),
    "lerobot, ours": ("lerobot", "lift", converted("lerobot")),
    "lerobot, videos": ("lerobot", "lift", converted("lerobot", options=Options(video="h264"))),
}
"""Samples: name -> (format, name of the file or folder, function that makes it there)."""
