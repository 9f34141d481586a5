"""Parts of online RL: which numbers of workers and ages of weights fit, who plays which environments."""

import sys
from types import SimpleNamespace as Words

import numpy as np
import pytest

from imitate.errors import ConfigError, MissingPackageError
from imitate.system.processes import LOCAL
from imitate.system.ranks import Ranks
from imitate.train.online import parts as module
from imitate.train.online.parts import expert_steps, make_blueprints, make_collector, make_memory
from tests.refusals import refused


def setup(experience="replay", *, on=LOCAL, takes_old=False, rank=0, world=1, agents=1, **online):
    settings = {
        **{"num_envs": 4, "num_workers": 2, "max_staleness": None, "push_every_s": 0.0},
        **{"acting": "collector", "policy_workers": 1, "ring": 1, "collect_steps": 8},
        **{"horizon": None, "end_at_success": True, "warmup_policy": "random", "buffer_size": 9},
        **{"step_timeout_s": 7.0, "prioritized": Words(enabled=False), **online},
    }
    train = Words(online=Words(**settings), batch_size=4, seed=3, data=None, frame_stack=1)
    cluster = Words(on=on, cpus_per_worker=1, gpus_per_worker=0, start_timeout_s=9, spread=True)
    section = Words(get=lambda key, default=None: {"discount": 0.9}.get(key, default))
    experiment = Words(rollout=Words(horizon=50))
    config = Words(
        train=train, cluster=cluster, algo=section, algo_name="ppo", experiment=experiment
    )
    config.to_json = lambda: "{}"
    algo = Words(experience=experience, takes_old=takes_old, ranks=Ranks(rank, world))
    algo.config, algo.obs_key_shapes, algo.ac_dim = Words(rollout_epochs=3), {"s": (1,)}, 1
    algo.gives_errors, algo.state_shapes = False, None
    env = Words(low=np.zeros(1), high=np.ones(1), num_choices=0, obs_shapes={"s": (1,)})
    env.num_agents, env.stored_shapes, env.action_dim, env.image_keys = agents, {"s": (1,)}, 1, ()
    lanes = settings["num_envs"] * agents
    return Words(
        config=config,
        algo=algo,
        env=env,
        num_lanes=lanes,
        make="make",
        env_metas=[{"env_name": "E"}],
    )


@pytest.fixture
def collect(monkeypatch):
    made = []
    monkeypatch.setattr(module, "open_backend", lambda on, **words: (on, words))
    monkeypatch.setattr(
        module, "ProcessCollector", lambda *given, **words: made.append((given, words))
    )
    monkeypatch.setattr(module, "sources_of", lambda section: ("reward",))

    def run(*given, **words):
        make_collector(setup(*given, **words))
        return made

    return run


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"max_staleness": 1, "push_every_s": 2.0},
        {"num_workers": 4},
        {"on": "ray://here"},
        # rollouts of both workers are round(4 * 8 / 4) = 8 minibatches, three times
        {"experience": "rollout", "takes_old": True, "max_staleness": 24},
        {"experience": "rollout", "takes_old": True, "max_staleness": 12, "num_workers": 4, "collect_steps": 2},
    ],
)  # fmt: skip
def test_settings_that_fit(collect, words):
    ((given, options),) = collect(**words)
    assert options["max_staleness"] == words.get("max_staleness")
    assert (options["step_timeout_s"], options["place"][0]) == (7.0, words.get("on", LOCAL))
    assert len(given[0]) == words.get("num_workers", 2)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ({"max_staleness": 5, "num_workers": 0}, "max_staleness: needs num_workers of 1 or more"),
        ({"experience": "rollout", "max_staleness": 99}, "max_staleness: needs num_workers"),
        ({"max_staleness": 0}, "max_staleness: 0 allows no update"),
        ({"experience": "rollout", "takes_old": True, "max_staleness": 23}, "23, but|give 24 updates: set it to 24"),
        ({"experience": "rollout", "takes_old": True, "max_staleness": 11, "num_workers": 4, "collect_steps": 2},
         "11, but|give 12 updates"),
        ({"push_every_s": 0.5}, "push_every_s: 0.5, but max_staleness is null"),
        ({"num_workers": 5}, "num_workers: 5 processes for 4 environments"),
        ({"on": "ray://here", "num_workers": 0}, "cluster.on: 'ray://here', but|num_workers is 0"),
        ({"policy_workers": 2}, "policy_workers: 2 needs train.online.acting 'central'"),
        ({"ring": 2}, "ring: 2 needs train.online.acting 'central'"),
        ({"acting": "central", "num_workers": 0}, "'central' needs environment workers"),
        ({"acting": "central", "policy_workers": 3}, "policy_workers: 3 for 2 environment workers: at most 2"),
        ({"acting": "central", "ring": 3}, "ring: 2 workers with 3 groups each need 6 environments, got|num_envs 4"),
        ({"acting": "central", "ring": 2, "policy_workers": 2, "warmup_policy": "mine"},
         "warmup_policy: 'mine' acts beside the environments"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit(collect, words, refusal):
    with refused(refusal, error=ConfigError):
        collect(**words)


@pytest.mark.parametrize(
    ("words", "lanes", "seeds"),
    [
        ({"num_workers": 0}, [[0, 1, 2, 3]], [4]),
        ({}, [[0, 1], [2, 3]], [4, 5]),
        ({"num_workers": 0, "agents": 2, "num_envs": 2}, [[0, 1, 2, 3]], [4]),
        # rank 1 of 2 has every second environment, and its part of the workers
        ({"rank": 1, "world": 2, "num_workers": 4}, [[1], [3]], [5, 7]),
        ({"rank": 1, "world": 2, "num_workers": 0, "agents": 2}, [[2, 3, 6, 7]], [5]),
    ],
)
def test_environments_are_divided_among_ranks_and_workers(monkeypatch, words, lanes, seeds):
    monkeypatch.setattr(module, "sources_of", lambda section: ("reward",))
    monkeypatch.setattr(module, "Blueprint", lambda *given: given)
    made = make_blueprints(setup(**words))
    assert [given[1].tolist() for given in made] == lanes
    assert [given[7] for given in made] == seeds
    group = {"seed": 3, "horizon": 50, "discount": 0.9, "end_at_success": True}
    assert made[0][2] == {**group, "signals": ("reward",)} and made[0][8] is None
    (first, *_) = make_blueprints(setup(horizon=20, warmup_policy="mine"))
    assert (first[2]["horizon"], first[8]) == (20, ("mine", "E", {"s": (1,)}))
    assert make_blueprints(setup(warmup_policy="policy"))[0][8] is None
    plain = setup()
    plain.config.algo = Words(get=lambda key, default=None: default)
    assert make_blueprints(plain)[0][2]["discount"] == 1.0


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(module, "fixed_rewards", lambda config: "rewards")
    for name in ("ReplayBuffer", "SequenceReplay"):
        monkeypatch.setattr(module, name, lambda *shape, name=name, **words: (name, shape, words))

    def make(*, sequences=None, transitions="steps", states=None, **words):
        given = setup(**words)
        needs = Words(transitions=transitions, returns=None, sequences=sequences)
        given.config.algo.data_needs = lambda config: needs
        given.config.algo.following = lambda config: None
        given.config.train.online.hindsight = Words(enabled=False)
        given.algo.state_shapes = states
        return make_memory(given)

    return make


def test_a_replay_buffer_has_this_ranks_part(memory):
    name, shape, words = memory(rank=1, world=2, agents=3)
    assert (name, shape) == ("ReplayBuffer", ({"s": (1,)}, 1, 4))
    assert (words["num_envs"], words["seed"], words["frame_stack"]) == (6, Ranks(1, 2).seed(3), 1)
    assert "seq_length" not in words
    assert memory(world=2, buffer_size=1)[1][2] == 1
    sequences = Words(length=8, burn_in=2)
    name, _, words = memory(sequences=sequences, states={"h": (4,)})
    assert (name, words["seq_length"], words["burn_in"]) == ("SequenceReplay", 8, 2)
    assert memory(sequences=sequences)[0] == "ReplayBuffer"
    assert memory(states={"h": (4,)})[0] == "ReplayBuffer"


def test_algorithms_without_replay_or_td_errors_or_demonstrations(memory):
    with refused("'ppo' is offline-only", error=ConfigError):
        memory(transitions=None)
    with refused("prioritized.enabled: ppo has no critics", error=ConfigError):
        memory(prioritized=Words(enabled=True))
    with refused("ppo learns from demonstrations: name them", error=ConfigError):
        expert_steps(setup())


def test_acting_in_one_place_needs_its_package(collect, monkeypatch):
    monkeypatch.setitem(sys.modules, "imitate.train.online.central.collector", None)
    with refused("train.online.acting: 'central': ", error=MissingPackageError):
        collect(acting="central")


@pytest.fixture
def learn(monkeypatch):
    """Makes a learner of stand-ins; returns its name with its arguments, and the normalizers that were made."""
    normalizers = []

    class Normalizer:
        def __init__(self, shapes, alike, *, is_running, ranks):
            self.made, self.applied, self.seen = (shapes, alike, is_running), [], []
            normalizers.append(self)

        def add_all(self, observations):
            self.seen += [each["s"].tolist() for each in observations]

        def apply(self, preprocess):
            self.applied.append(preprocess)

    parts = {
        "ReplayLearner": lambda *given, **words: ("replay", given, words),
        "RolloutLearner": lambda *given, **words: ("rollout", given, words),
        "RewardScaler": lambda transform, *given: (transform, *given),
        "ObsNormalizer": Normalizer,
        "goals_alike": lambda config: "alike",
        "make_memory": lambda setup: "memory",
        "MixedBuffer": list,
        "Corrected": lambda demos, memory: ("corrected", demos, memory),
        "demonstrations_of": lambda *given: Words(episodes=lambda: [Words(obs={"s": [1.0]})]),
        "expert_steps": lambda setup: "expert",
    }
    for name, part in parts.items():
        monkeypatch.setattr(module, name, part)

    def make(experience="replay", *, train=(), ckpt_path=None, expert_passes=0, **online):
        words = {"demo_ratio": 0.0, "pretrain_updates": 0, "obs_statistics": "warmup"}
        words |= {"update_ratio": 0.5, "warmup_steps": 7, **online}
        given = setup(experience, agents=2, **words)
        config, algo, env = given.config, given.algo, given.env
        reward = Words(normalization=None, scale=2.0, shift=1.0, clip=None)
        vars(config.train).update({"obs_normalization": None, "reward": reward, **dict(train)})
        config.experiment.ckpt_path = ckpt_path
        config.observation = Words(mask_key=lambda: "mask")
        config.algo = {"discount": 0.9}
        algo.expert_passes, algo.preprocess = expert_passes, "preprocess"
        env.image_keys, env.obs_shapes = ("eye",), {"eye": (2, 2, 3), "mask": (4,), "s": (1,)}
        return module.make_learner(given), normalizers

    return make


NORMALIZED = {"obs_normalization": "mean_std"}


def test_a_learner_of_rollouts(learn):
    (name, _, words), made = learn("rollout")
    assert name == "rollout" and made == []
    assert (words["rollout_steps"], words["batch_size"]) == (8, 4)
    transform, lanes, discount, ranks = words["reward_scaler"]
    assert (transform.scale, transform.shift, transform.clip) == (2.0, 1.0, None)
    assert (lanes, discount, ranks) == (8, None, Ranks(0, 1))
    assert words["obs_normalizer"] is words["demos"] is None
    running = Words(normalization="running", scale=1.0, shift=0.0, clip=5.0)
    train = {"reward": running, **NORMALIZED}
    (_, _, words), made = learn("rollout", train=train, expert_passes=1, obs_statistics="running")
    assert words["reward_scaler"][2] == 0.9 and words["demos"] == "expert"
    # Neither images nor masks are normalized.
    assert words["obs_normalizer"] is made[0] and made[0].made == ({"s": (1,)}, "alike", True)


@pytest.mark.parametrize(
    ("words", "mixed"),
    [
        ({"demo_ratio": 0.25}, [0.75, 0.25]),
        ({"pretrain_updates": 1}, [1.0, 0.0]),
        ({}, None),
        ({"demo_ratio": 0.25, "train": {"data": None}}, None),
    ],
)
def test_a_learner_from_replay_and_demonstrations(learn, words, mixed):
    train = {"data": ["x"], **NORMALIZED, **words.pop("train", {})}
    (name, (_, memory, source), words), (normalizer,) = learn(train=train, **words)
    assert (name, memory, words["batch_size"]) == ("replay", "memory", 4)
    assert (words["update_ratio"], words["warmup_steps"]) == (0.5, 7)
    assert not normalizer.made[2]
    if mixed is None:
        assert source == "memory" and words["demos"] is None
        assert words["obs_normalizer"] is normalizer and not normalizer.applied
    else:
        assert [share for _, share in source] == mixed and source[0][0] == "memory"
        assert source[1][0] == ("corrected", words["demos"], "memory")
        # The statistics are those of the demonstrations, and stay so.
        assert words["obs_normalizer"] is None and normalizer.seen == [[1.0]]
        assert normalizer.applied == ["preprocess"]


def test_a_learner_from_weights_keeps_their_statistics(learn):
    (_, _, words), made = learn(train=NORMALIZED, ckpt_path="a.pth")
    assert words["obs_normalizer"] is None and made == []
