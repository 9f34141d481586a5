"""Small demonstration files for tests, written with the package's own writer."""

from pathlib import Path

import numpy as np

from imitate.data import DatasetWriter, Episode

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
    with DatasetWriter(path, ENV_META if env_meta is None else env_meta, overwrite=True) as writer:
        written = [
            writer.append_episode(
                make_episode(random, steps, dims, action_dim, image, **episode),
                name=names[i] if names else None,
            )
            for i, steps in enumerate(lengths)
        ]
        for key, numbers in (filter_keys or {}).items():
            writer.add_filter_key(key, [written[i] for i in numbers])
    return Path(path)
