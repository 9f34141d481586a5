"""Which environments a training is evaluated in, and under which names."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from imitate import load_config, policy_from_checkpoint
from imitate.envs.spaces import ActionSpace
from imitate.errors import ConfigError, EnvError
from imitate.evaluate import environments as named_environments
from imitate.evaluate.environments import (
    EnvTrial,
    at_rate,
    check_cluster,
    check_named,
    environments,
    laid_over,
    named_env,
    named_robot,
    opponent_of,
    simulated,
    trials,
    with_env,
)
from imitate.evaluate.result import file_name, label
from tests.tiny import tiny_checkpoint, tiny_tree

PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}
META = {"env_name": "Toy", "type": 2, "env_kwargs": {}}


@pytest.fixture
def config(demo_file):
    def make(*entries, **experiment):
        data = []
        for number, (kwargs, entry) in enumerate(entries):
            meta = {**META, "env_kwargs": kwargs}
            attrs = {"language": entry.pop("told")} if "told" in entry else None
            path = demo_file(f"{number}.hdf5", num_demos=1, env_meta=meta, seed=number, attrs=attrs)
            data.append({"path": str(path), **entry})
        return load_config({"algo_name": "bc", "train": {"data": data}, "experiment": experiment})

    return make


def test_one_environment_has_no_extra_keys(config):
    assert environments(config(({}, {}), ({}, {"key": "again"}))) == (META,)


def test_entries_without_eval_are_left_out_unless_none_has_it(config):
    one, two = {**META, "env_kwargs": {"a": 1}}, {**META, "env_kwargs": {"a": 2}}
    assert environments(config(({"a": 1}, {"eval": False}), ({"a": 2}, {}))) == (two,)
    off = {"eval": False}
    assert environments(config(({"a": 1}, dict(off)), ({"a": 2}, dict(off)))) == (one,)


def test_data_that_do_not_name_their_environment_are_refused_only_for_rollouts(config):
    nameless = config(({}, {}), env="unknown")
    with pytest.raises(
        EnvError, match=r"0.hdf5: does not name its environment: add --set experiment.env=NAME"
    ):
        environments(nameless)
    environments(nameless.with_overrides({"experiment.rollout.enabled": False}))


def test_names_are_the_keys_or_numbered(config):
    metas = environments(config(({"a": 1}, {"key": "easy"}), ({"a": 2}, {}), ({"a": 3}, {})))
    assert [meta["key"] for meta in metas] == ["easy", "Toy 1", "Toy 2"]
    assert [label(meta) for meta in metas] == ["easy", "Toy 1", "Toy 2"]
    assert label(META) == "Toy"


def test_additional_environments_keep_their_own_names(config):
    metas = environments(config(({}, {"key": "easy"}), additional_envs=["Other"]))
    assert [(m["env_name"], m["key"]) for m in metas] == [("Toy", "Toy"), ("Other", "Other")]


def test_one_evaluation_per_instruction_that_the_policy_knows(config):
    made = config(({}, {"told": "lift"}), ({}, {"told": "push"}), ({}, {"told": "fold"}))
    metas = environments(made, tasks=("lift", "push"))
    assert [meta.get("lang") for meta in metas] == ["lift", "push", None]
    assert [meta["key"] for meta in metas] == ["Toy: lift", "Toy: push", "Toy"]
    assert environments(made) == (META,)


def test_labels_as_names_of_files():
    assert file_name("Toy: lift the red/cube") == "Toy_lift_the_red_cube"


def test_an_older_simulators_environment_is_translated_once(demo_file, caplog):
    old = {
        "env_name": "Lift",
        "env_version": "1.4.1",
        "type": 1,
        "env_kwargs": {"robots": "Panda", "controller_configs": {"type": "OSC_POSE"}},
    }
    path = demo_file("old.hdf5", num_demos=1, env_meta=old)
    tree = {"algo_name": "bc", "train": {"data": str(path)}}
    (meta,) = environments(load_config(tree))
    assert meta["env_version"].startswith("1.5")
    assert meta["env_kwargs"]["controller_configs"]["body_parts"]["right"]["type"] == "OSC_POSE"
    (record,) = caplog.records
    assert "imitate dataset migrate-env" in record.getMessage()
    quiet = {**tree, "experiment": {"rollout": {"enabled": False}}}
    assert environments(load_config(quiet)) == (old,)


def test_the_named_environment_keeps_arguments_of_its_own_simulator_only():
    robot = {"env_name": "arm", "type": 4, "env_kwargs": {"port": "/dev/arm"}}
    lift = {"env_name": "Lift", "type": 1, "env_version": "1.5", "env_kwargs": {"robots": "Panda"}}
    assert named_env("a.b:Reach-v0", robot) == {
        "env_name": "a.b:Reach-v0",
        "type": 2,
        "env_kwargs": {},
    }
    assert named_env("Stack", lift) == {**lift, "env_name": "Stack"}
    assert named_env("Lift", robot) == {"env_name": "Lift", "type": 1, "env_kwargs": {}}
    assert named_env("Pendulum-v1", lift)["type"] == 2
    assert laid_over(robot, {"env_name": "a:B-v0", "type": 2}) == {"env_name": "a:B-v0", "type": 2}
    assert laid_over(lift, {"env_kwargs": {"horizon": 9}})["env_kwargs"] == {
        "robots": "Panda",
        "horizon": 9,
    }
    assert lift["env_kwargs"] == {"robots": "Panda"}


def test_wrappers_stay_around_an_environment_of_another_simulator():
    wrapped = {
        "env_name": "Lift",
        "type": 1,
        "wrappers": [{"type": "skills"}],
        "env_kwargs": {"a": 1},
    }
    found = named_env("Pendulum-v1", wrapped)
    assert found == {**PENDULUM, "wrappers": [{"type": "skills"}]}
    assert named_env("Nowhere", {"type": 4}) == {"env_name": "Nowhere", "type": 2, "env_kwargs": {}}


FAST = {"control_freq": 20}


@pytest.mark.parametrize(
    ("text", "own", "found"),
    [
        ("robot:arm", {"env_name": "robot:arm", "own": 1}, {"env_name": "robot:arm", "own": 1}),
        ("robot:arm", {"env_name": "Lift", "type": 1, "env_kwargs": FAST}, ("robot:arm", FAST)),
        ("robot:arm", None, ("robot:arm", {})),
        (
            "robot:sim",
            {**PENDULUM, "env_kwargs": FAST},
            (
                "robot:sim:Pendulum-v1",
                {"options": {"env_meta": {**PENDULUM, "env_kwargs": FAST}}, **FAST},
            ),
        ),
        (
            "robot:sim:Pendulum-v1",
            {"env_name": "Lift", "type": 1, "env_kwargs": FAST},
            ("robot:sim:Pendulum-v1", {"options": {"env_meta": PENDULUM}}),
        ),
    ],
)
def test_robots(text, own, found):
    if isinstance(found, tuple):
        found = {
            "env_name": found[0],
            "type": named_environments.REAL_ROBOT,
            "env_kwargs": found[1],
        }
    assert named_robot(text, own) == found


@pytest.mark.parametrize(
    "own", [None, {"env_name": "robot:arm", "type": named_environments.REAL_ROBOT}]
)
def test_a_simulated_robot_needs_an_environment(own):
    with pytest.raises(ConfigError, match="robot:sim: no environment given: name one, such as"):
        named_robot("robot:sim", own)


@pytest.mark.parametrize(
    ("meta", "rate", "kwargs"),
    [
        ({"env_kwargs": {"port": 1}}, 20.0, {"port": 1, "control_freq": 20.0}),
        ({}, 20.0, {"control_freq": 20.0}),
        ({"env_kwargs": {"control_freq": 5}}, 20.0, {"control_freq": 5}),
        ({"env_kwargs": {"port": 1}}, None, {"port": 1}),
        ({"env_kwargs": {"port": 1}, "env_name": "Lift", "type": 1}, 20.0, {"port": 1}),
    ],
)
def test_the_rate_of_the_data_is_that_of_a_robot(meta, rate, kwargs):
    robot = {"env_name": "robot:arm", "type": named_environments.REAL_ROBOT, **meta}
    assert at_rate(robot, rate)["env_kwargs"] == kwargs


def test_env_goes_before_the_updates_of_the_configuration_and_these_before_the_file(config):
    updated = {"env_name": "CartPole-v1", "type": 2, "env_kwargs": {"sutton_barto_reward": True}}
    named = config(({}, {}), rollout={"enabled": False}, env_meta_update_dict=updated)
    assert environments(named) == (updated,)
    (meta,) = environments(with_env(named, "Pendulum-v1"))
    assert meta == {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}


def test_updates_that_name_no_environment_count_beside_env(config):
    kwargs = {"env_kwargs": {"g": 9.0}}
    named = config(({"a": 1}, {}), rollout={"enabled": False}, env_meta_update_dict=kwargs)
    (meta,) = environments(with_env(named, "Pendulum-v1"))
    assert meta == {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {"a": 1, "g": 9.0}}


def test_env_is_where_an_online_training_acts_if_nothing_else_names_one():
    tree = {"algo_name": "sac", "train": {"online": {"enabled": True}}}
    named = with_env(load_config(tree), "Pendulum-v1").train.online.env
    assert named["env_name"] == "Pendulum-v1"


def test_a_file_of_env_args_is_an_object(tmp_path):
    path = tmp_path / "env.json"
    path.write_text(json.dumps(PENDULUM))
    assert named_env(str(path)) == PENDULUM
    path.write_text("[1]")
    with pytest.raises(ConfigError, match="wanted an object with env_name, type and env_kwargs"):
        named_env(str(path))


@pytest.mark.parametrize(
    ("env", "shape", "size", "words"),
    [
        ("Pendulum-v1", (3,), 1, None),
        ("Nowhere-v1", (3,), 1, "Nowhere-v1.*; to train without rollouts: "),
        (
            "Pendulum-v1",
            (4,),
            1,
            r"observation 'flat' of shape \(3,\), but the data have \(4,\); to train without",
        ),
        ("Pendulum-v1", (3,), 2, "takes actions of 1 numbers, but the data have 2"),
    ],
)
def test_an_environment_is_tried_before_a_training(env, shape, size, words):
    trial = EnvTrial({**PENDULUM, "env_name": env}, {"flat": shape}, size)
    if words is None:
        return trial.play()
    with pytest.raises(EnvError, match=words):
        trial.play()


class Arms:
    """Two agents, or one; notes what it is asked."""

    action_low, action_high = np.array([-1.0, 2.0, -np.inf]), np.array([3.0, 2.0, 5.0])
    action_dim = 3

    def __init__(self, agents=None):
        self.agents, self.steps, self.closed = agents, [], 0

    def reset(self, *, seed):
        assert seed == 0
        obs = {"s": np.zeros(3)}
        return ([obs] * 2 if self.agents else obs), {}

    def step(self, action):
        self.steps.append(np.asarray(action).tolist())

    def close(self):
        self.closed += 1


@pytest.mark.parametrize(
    ("agents", "steps"), [(None, [1.0, 2.0, 0.0]), (("a", "b"), [[1.0, 2.0, 0.0]] * 2)]
)
def test_a_trial_takes_a_step_in_the_middle_of_the_limits(monkeypatch, agents, steps):
    made, asked = Arms(agents), []
    monkeypatch.setattr(
        named_environments, "make_env", lambda *given, **words: asked.append(words) or made
    )
    EnvTrial(META, {"s": (3,)}, 3).play()
    assert made.steps == [steps] and made.closed == 1
    assert asked == [{"obs_keys": ("s",), "camera_size": {}, "team": True}]
    with pytest.raises(EnvError, match="gives no observation 'z', but s; to train without"):
        EnvTrial(META, {"z": (3,)}, 3).play()
    made.action_dim = 4
    with pytest.raises(EnvError, match="takes actions of 4 numbers, but the data have 3"):
        EnvTrial(META, {"s": (3,)}, 3).play()
    assert made.closed == 3 and len(made.steps) == 1


def test_tasks_of_one_environment_share_a_trial():
    metas = [{**META, "key": "a", "lang": "x"}, {**META, "key": "b"}, {**META, "env_name": "Other"}]
    shapes = {"s": (3,), "lang_emb": (7,)}
    found = trials(shapes, 2, metas, serves_language=True)
    assert [trial.env_meta["env_name"] for trial in found] == ["Toy", "Other"]
    assert found[0].obs_shapes == {"s": (3,)} and found[0].action_dim == 2
    assert trials(shapes, 2, metas, serves_language=False)[0].obs_shapes == shapes


def test_environments_that_can_be_made_here(monkeypatch):
    monkeypatch.setattr(named_environments, "can_be_made", lambda meta: meta["type"] == 2)
    assert simulated([META, {**META, "type": 4}]) == [META]


def test_only_a_cluster_that_is_typed_needs_no_trust(config, monkeypatch):
    asked = []
    monkeypatch.setattr(named_environments, "refuse", lambda *words: asked.append(words))
    counts = []
    for typed in ([], ["train.seed=1"], ["train.seed=1", "cluster.on = ray"], ["cluster={}"]):
        check_cluster(config(({}, {})), typed)
        counts.append(len(asked))
    check_cluster(config(({}, {})))
    assert (counts, len(asked)) == ([1, 2, 2, 2], 3)


TYPED = """
train.online.env=theirs:Arm-v0 | train.online.env | theirs:Arm-v0
experiment.env=theirs:Arm-v0 | experiment.env | theirs:Arm-v0
train.online.warmup_policy=theirs:act | train.online.warmup_policy | theirs:act
algo.networks.actor=theirs:net | algo.networks | {"actor": "theirs:net"}
"""
"""change that the user types | key of a configuration in a file | value"""


@pytest.mark.parametrize("row", TYPED.strip().splitlines())
def test_only_names_that_are_typed_need_no_trust(row, monkeypatch):
    monkeypatch.delenv("IMITATE_TRUST_MODULES", raising=False)
    typed, key, value = row.split(" | ")
    given = load_config(tiny_tree("sac"), [f"{key}={value}"])
    for others in ([], ["experiment.name=theirs"], [f"x.{typed}"]):
        with pytest.raises(EnvError, match="theirs"):
            check_named(given, others)
    check_named(given, ["train.seed=1", typed])


def test_a_random_opponent_repeats_itself_and_keeps_to_the_mask():
    agent = opponent_of("random", ActionSpace("game", spaces.Discrete(5)))
    free = [agent({}).tolist() for _ in range(3)]
    assert len({tuple(one) for one in free}) == 3
    agent.start_episode()
    assert [agent({}).tolist() for _ in range(3)] == free
    picked = {int(agent({"action_mask": [0, 1, 0, 1, 0]}).argmax()) for _ in range(40)}
    assert picked == {1, 3}
    half = {int(agent({"action_mask": [0.5, 0.49, 0, 0, 0]}).argmax()) for _ in range(40)}
    assert half == {0}
    first = np.random.default_rng(0).uniform([-1.0, -1.0], [4.0, 4.0])
    wide = opponent_of("random", ActionSpace("game", spaces.Box(-np.inf, 4.0, (2,))))
    assert wide({}).tolist() == first.tolist()
    high = opponent_of("random", ActionSpace("game", spaces.Box(-4.0, np.inf, (2,))))
    assert high({}).tolist() == np.random.default_rng(0).uniform([-4.0] * 2, [1.0] * 2).tolist()
    wide = opponent_of("random", ActionSpace("game", spaces.Box(-np.inf, 4.0, (2,))))
    drawn = np.array([wide({}) for _ in range(200)])
    assert (drawn.min() < -0.9) and (3.9 < drawn.max() <= 4.0)


def test_a_policy_is_an_opponent_where_its_actions_fit(tmp_path):
    path = tiny_checkpoint(tmp_path / "a.pth", obs={"flat": 3}, env=PENDULUM)
    agent = opponent_of(str(path), ActionSpace("game", spaces.Box(-1, 1, (1,))))
    agent.start_episode()
    policy, _ = policy_from_checkpoint(ckpt_path=path)
    policy.start_episode()
    obs = {"flat": np.array([0.1, 0.2, 0.3], np.float32)}
    assert agent(obs).shape == (1,) and (agent(obs) == policy(obs)).all()
    for name, words in (
        (str(path), "gives actions of 1 numbers, but its agents take 2"),
        ("b.pth", "no checkpoint 'b.pth'"),
    ):
        with pytest.raises(EnvError, match=words):
            opponent_of(name, ActionSpace("game", spaces.Box(-1, 1, (2,))))
