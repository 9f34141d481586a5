"""Small demonstration files for tests, written with the package's own writer."""

import itertools
import json
from pathlib import Path

import numpy as np

from imitate.config import load_config
from imitate.data import DatasetFile, DatasetWriter, Episode

OBS_DIMS = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2, "object": 10}
ENV_META = {
    "env_name": "Lift",
    "env_version": "1.5.2",
    "type": 1,
    "env_kwargs": {"robots": "Panda"},
}


def make_episode(
    random,
    length,
    obs_dims,
    action_dim=7,
    image=False,
    next_obs=True,
    action_scale=1.0,
    actions_from_obs=False,
    attrs=None,
    steps=None,
):
    """Random walks as observations; actions uniform in +-action_scale, or tanh of a fixed linear map of them."""
    walk = {
        key: random.normal(size=(length + 1, dim)).cumsum(0) * 0.1 for key, dim in obs_dims.items()
    }
    if actions_from_obs:
        joined = np.concatenate([walk[key][:-1] for key in sorted(walk)], axis=1)
        matrix = np.random.default_rng(123).normal(size=(joined.shape[1], action_dim))
        actions = action_scale * np.tanh(joined @ matrix)
    else:
        actions = random.uniform(-action_scale, action_scale, (length, action_dim))
    if image:
        walk["agentview_image"] = random.integers(0, 256, (length + 1, 8, 6, 3), dtype=np.uint8)
    last = np.arange(length) == length - 1
    return Episode(
        obs={key: value[:-1] for key, value in walk.items()},
        next_obs={key: value[1:] for key, value in walk.items()} if next_obs else None,
        actions=actions,
        rewards=last.astype(np.float32),
        terminals=last,
        timeouts=np.zeros(length, dtype=bool),
        states=random.normal(size=(length, 5)),
        attrs={"success": True, **(attrs or {})},
        steps=steps or {},
    )


def episode(length, obs, actions=2, end=None, **values):
    """An `Episode` of zeros, but for what is given.

    Args:
        length: steps.
        obs: arrays by name.
        actions: (T, A), or A.
        end: 'terminal' or 'timeout': the flag that the last step has; None: neither.
        **values: other fields of `Episode`.
    """
    last = np.arange(length) == length - 1
    zeros = {
        "actions": np.zeros((length, actions)) if isinstance(actions, int) else actions,
        "rewards": np.zeros(length),
        "terminals": last & (end == "terminal"),
        "timeouts": last & (end == "timeout"),
    }
    return Episode(obs=obs, **{**zeros, **values})


def write_demos(path, episodes, env_meta=ENV_META, filter_keys=None, names=None, **options):
    """Write episodes into a new file and return its path.

    Args:
        path: the file; replaced if there is one.
        episodes: `Episode` each.
        env_meta: of the environment.
        filter_keys: {mask: numbers of demos}.
        names: of the demos.
        **options: of `DatasetWriter`.
    """
    with DatasetWriter(path, env_meta, **{"overwrite": True, **options}) as writer:
        names = names or itertools.repeat(None)
        written = [writer.append_episode(*pair) for pair in zip(episodes, names, strict=False)]
        for key, numbers in (filter_keys or {}).items():
            writer.add_filter_key(key, [written[i] for i in numbers])
    return Path(path)


def data_config(data, obs, algo_name="bc", rgb=(), validate=False, algo=None, **train):
    """Configuration of a training on a file, or on several in the form of `train.data`."""
    return load_config(
        {
            "algo_name": algo_name,
            "experiment": {"validate": validate},
            "train": {"data": data if isinstance(data, list) else str(data), **train},
            "algo": algo or {},
            "observation": {"modalities": {"obs": {"low_dim": list(obs), "rgb": list(rgb)}}},
        }
    )


def contents(path):
    """Everything in a demonstration file: arrays by demo and key, attributes by demo, filter keys, the file's own."""
    with DatasetFile(path) as file:
        arrays = {(demo, k): file.read(demo, k) for demo in file.demos() for k in file.keys(demo)}  # noqa: SIM118
        attrs = {demo: file.attrs(demo) for demo in file.demos()}
        return arrays, attrs, file.filter_keys(), file.file_attrs


def assert_equal_contents(one, two):
    """Assert that two files hold the same, values and types."""
    (arrays, *rest), (other, *other_rest) = contents(one), contents(two)
    assert list(arrays) == list(other)
    for place, value in arrays.items():
        np.testing.assert_array_equal(other[place], value, err_msg=str(place))
        assert other[place].dtype == value.dtype, place
    assert rest == other_rest


def make_demo_file(
    path,
    num_demos=4,
    length=12,
    obs_dims=None,
    seed=0,
    image=False,
    action_dim=7,
    filter_keys=None,
    names=None,
    env_meta=None,
    **episode,
):
    """Write a demonstration file.

    Args:
        path: the file; replaced if there is one.
        num_demos: how many demos.
        length: steps of each, or one number per demo.
        obs_dims: size per observation; Lift's four by default.
        seed: of all values.
        image: add 'agentview_image', uint8 (8, 6, 3).
        action_dim: size of the action.
        filter_keys: {mask: numbers of demos}.
        names: of the demos.
        env_meta: of the environment.
        **episode: see `make_episode`.

    Returns:
        the path.
    """
    random = np.random.default_rng(seed)
    lengths = [length] * num_demos if isinstance(length, int) else list(length)
    dims = OBS_DIMS if obs_dims is None else obs_dims
    made = (make_episode(random, steps, dims, action_dim, image, **episode) for steps in lengths)
    return write_demos(path, made, ENV_META if env_meta is None else env_meta, filter_keys, names)


def features(**names):
    """The attribute with the names of vectors' numbers by array."""
    entries = {k: {"feature": k, "shape": [len(v)], "names": v} for k, v in names.items()}
    return json.dumps(entries)
