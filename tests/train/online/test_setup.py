"""Setup of online RL in an environment of a few lines: what it observes and does, which settings fit it."""

from types import SimpleNamespace as Words

import numpy as np
import pytest
import torch

from imitate.config import load_config
from imitate.errors import ConfigError, EnvError
from imitate.train.online import setup as module
from imitate.train.online.setup import build_online, look_at, online_env_meta, with_own_observations
from tests.refusals import refused
from tests.tiny import tiny_tree

META = {"env_name": "Plain-v0", "type": 2, "env_kwargs": {"control_freq": 20}}


class Plain:
    """Two vectors and an image; the first ``num_choices`` values of an action are a choice."""

    name, num_choices, gives_mask, agents = "Plain-v0", 0, False, None
    action_low, action_high = np.array([-1.0, 0.0, 2.0]), np.array([1.0, 4.0, 3.0])

    def __init__(self):
        self.obs = {"s": np.zeros(3), "t": np.zeros(2, np.float32)}
        self.closed = 0

    def reset(self, *, seed):
        assert seed == 0
        return ([self.obs] * len(self.agents) if self.agents else self.obs), {}

    def close(self):
        self.closed += 1


@pytest.fixture
def world(monkeypatch):
    made = Words(env=Plain(), asked=[], fails=())

    def make_env(meta, *, obs_keys=None, team):
        made.asked.append((meta, obs_keys, team))
        return made.env

    monkeypatch.setattr(module, "make_env", make_env)
    monkeypatch.setattr(module, "check_trusted", lambda meta: None)
    monkeypatch.setattr(module, "fitted", lambda meta: meta)
    return made


def config(name="ppo", obs=None, data=None, algo=None, **online):
    """A configuration of training in ``META``; ``online`` are keys of ``train.online``."""
    train = {"online": {"enabled": True, "env": META, "num_envs": 1, **online}}
    words = {"experiment": {"epoch_every_n_steps": 10}, "algo": algo or {}}
    return load_config(tiny_tree(name, obs=obs or {"s": 3}, data=data, train=train, **words))


def test_what_an_environment_observes_and_does(world):
    world.env.obs["camera"] = np.zeros((4, 5, 3), np.uint8)
    world.env.obs["deep"] = np.zeros((4, 5, 1), np.float32)
    seen = Words(
        all_obs_keys=("s", "camera", "deep"),
        train=Words(online=Words(hindsight=Words(enabled=False))),
    )
    found = look_at(META, seen)
    assert found.obs_shapes == {"s": (3,), "camera": (4, 5, 3), "deep": (4, 5, 1)}
    assert found.image_types == {"camera": "uint8", "deep": "float"}
    assert found.stored_shapes == {"camera": (4, 5, 3), "deep": (4, 5, 1), "s": (3,)}
    assert (found.image_keys, found.low.tolist(), found.meta) == (
        ("camera",),
        [-1.0, 0.0, 2.0],
        META,
    )
    assert (found.num_choices, found.gives_mask, found.num_agents) == (0, False, 1)
    assert (found.action_dim, found.num_continuous, world.env.closed) == (3, 3, 1)
    world.env.num_choices, world.env.gives_mask, world.env.agents = 2, True, ("a", "b")
    found = look_at(META, seen)
    assert (found.num_choices, found.num_continuous) == (2, 1)
    assert (found.gives_mask, found.num_agents) == (True, 2)
    seen.all_obs_keys = ("s", "z")
    with refused("Plain-v0 has no observation 'z', but s, t, camera, deep", error=EnvError):
        look_at(META, seen)
    assert world.env.closed == 3


def test_the_environment_that_a_configuration_names(world):
    named = online_env_meta(config(env="Pendulum-v1"))
    assert named == {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}
    assert online_env_meta(config()) == META
    with refused("train.online.env: is null, and there are no demonstrations", error=ConfigError):
        online_env_meta(config(env=None))
    seen = {"s": 3, "duration": 3}
    given = config("sac", seen, wrappers=[{"type": "repeated", "num": 3}])
    (wrapper,) = online_env_meta(given)["wrappers"]
    assert wrapper == {"type": "repeated", "num": 3, "discount": given.algo["discount"]}
    parts = {"rewards": {"a": {"source": "reward:0"}}}
    assert online_env_meta(config(algo=parts))["reward_parts"] is True


def test_actions_are_scaled_by_their_limits(world):
    made = build_online(config(), torch.device("cpu"))
    actions = torch.tensor([[-1.0, 2.0, 3.0]])
    assert made.algo.preprocess.normalize_actions(actions, {}).tolist() == [[-1.0, 0.0, 1.0]]
    assert made.shape_metadata["control_freq"] == 20 and made.num_lanes == 1
    assert made.shape_metadata["action_dims"] == {"actions": 3}
    assert made.shape_metadata["raw_shapes"] == {"s": [3]}
    made.make()
    made.at_stage({"env_name": "stage"}).make()
    assert world.asked[-2:] == [(META, ("s",), True), ({"env_name": "stage"}, ("s",), True)]
    world.env.action_high = np.array([1.0, np.inf, 3.0])
    plain = build_online(config(), torch.device("cpu")).algo.preprocess
    assert plain.normalize_actions(actions, {}).tolist() == actions.tolist()


def test_choices_are_not_scaled(world):
    world.env.num_choices = 2
    made = build_online(config("sac"), torch.device("cpu"))
    assert (made.config.algo["num_choices"], made.config.algo["num_continuous"]) == (2, 1)
    actions = torch.tensor([[0.0, 1.0, 3.0]])
    assert made.algo.preprocess.normalize_actions(actions, {}).tolist() == [[0.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("name", "choices", "algo", "words"),
    [
        ("td3", 3, {}, "td3 needs continuous actions, but Plain-v0 takes one of 3 choices"),
        (
            "dqn",
            2,
            {},
            "dqn needs either discrete or continuous actions, but Plain-v0 takes one of 2 choices and 1 numbers",
        ),
        ("sac", 3, {"num_choices": 4}, "algo.num_choices: 4, but Plain-v0 has 3"),
        ("sac", 2, {"num_continuous": 2}, "algo.num_continuous: 2, but Plain-v0 has 1"),
    ],
)
def test_actions_that_an_algorithm_does_not_take(world, name, choices, algo, words):
    world.env.num_choices = choices
    for obs in ({"s": 3}, {"z": 3}):  # even where observations are missing too
        with refused(words, error=ConfigError):
            build_online(config(name, obs, algo=algo), torch.device("cpu"))


def test_other_settings_that_do_not_fit(world):
    tree = config().to_dict()
    tree["experiment"]["epoch_every_n_steps"] = None
    with refused("epoch_every_n_steps: is null", error=ConfigError):
        build_online(load_config(tree), torch.device("cpu"))
    for key, value in (("demo_ratio", 0.5), ("pretrain_updates", 1)):
        with refused("demo_ratio and pretrain_updates need demonstrations", error=ConfigError):
            build_online(config("sac", **{key: value}), torch.device("cpu"))
    meta = {**META, "env_kwargs": {"take_over": True}}
    with refused("ppo learns from its own actions alone", error=ConfigError):
        build_online(config(env=meta), torch.device("cpu"))
    build_online(config("sac", env=meta), torch.device("cpu"))


@pytest.mark.parametrize(
    ("choices", "size", "words"),
    [
        (3, 3, None),
        (0, 3, "'action_mask' masks choices, but the actions of Plain-v0 are continuous"),
        (3, 2, "has shape (2,), wanted one number for each of its 3 choices, (3,)"),
    ],
)
def test_masks_of_choices(world, choices, size, words):
    world.env.num_choices, world.env.obs["action_mask"] = choices, np.ones(size)
    tree = config("ppo").to_dict()
    tree["observation"]["modalities"]["obs"]["mask"] = ["action_mask"]
    if words is None:
        assert build_online(load_config(tree), torch.device("cpu")).algo.obs_shapes["s"] == (3,)
        return
    with refused(words, error=ConfigError):
        build_online(load_config(tree), torch.device("cpu"))


def test_a_mask_of_the_environment_is_observed(world):
    world.env.num_choices, world.env.gives_mask = 3, True
    world.env.obs["action_mask"] = np.ones(3)
    made = build_online(config(), torch.device("cpu"))
    assert made.config.observation.mask_key() == "action_mask"
    resumed = build_online(config(), torch.device("cpu"), resumed=True)
    assert resumed.config.observation.mask_key() is None


def test_observations_of_the_environment(world):
    world.env.obs["action_mask"] = np.ones(3)
    tree = config().to_dict()
    tree["observation"]["modalities"]["obs"]["low_dim"] = ["auto"]
    found = with_own_observations(load_config(tree))
    assert list(found.observation.modalities["obs"]["low_dim"]) == ["s", "t"]
    assert world.env.closed == 1
    given = config()
    assert with_own_observations(given) is given


def test_stages_have_the_same_observations_and_actions(world, monkeypatch):
    stages = [{"env_kwargs": {"n": 1}, "until": {"min_steps": 1}}, {"env_kwargs": {"n": 2}}]
    tree = config(curriculum={"stages": stages}).to_dict()
    tree["experiment"]["rollout"] |= {"enabled": True, "background": True}
    made = build_online(load_config(tree), torch.device("cpu"))
    assert [meta["env_kwargs"]["n"] for meta in made.stages] == [1, 2]
    assert made.env_metas[0]["env_kwargs"]["n"] == 2
    assert made.config.experiment.rollout.background is False
    other = Plain()
    for name, value, words in (
        ("action_high", np.array([1.0, 5.0, 3.0]), "stage 1 of 2 has high"),
        ("action_low", np.array([-2.0, 0.0, 2.0]), "stage 1 of 2 has low"),
        ("obs", {"s": np.zeros(4)}, "stage 1 of 2 has obs_shapes"),
        ("agents", ("a", "b"), "stage 1 of 2 has num_agents 2"),
    ):
        before = getattr(other, name)
        setattr(other, name, value)
        monkeypatch.setattr(
            module,
            "make_env",
            lambda meta, **_: other if meta["env_kwargs"]["n"] == 1 else world.env,
        )
        with refused(words, error=ConfigError):
            build_online(load_config(tree), torch.device("cpu"))
        setattr(other, name, before)
