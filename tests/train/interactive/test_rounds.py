"""Rounds of interactive imitation with trainings and episodes of a few lines: what is learned, what is refused."""

from types import SimpleNamespace as Words

import numpy as np
import pytest

from imitate.data import DatasetFile, Episode
from imitate.errors import ConfigError, EnvError, TrainingError
from imitate.train.interactive import dagger as module
from imitate.train.interactive.dagger import DaggerPlan, dagger, reports_uncertainty
from tests.refusals import refused
from tests.tiny import tiny_config

META = {"env_name": "imitate.envs.worlds.tasks:SpeedLimit-v0", "type": 2, "env_kwargs": {}}
PLAN = DaggerPlan(rounds=2, episodes=2, seed=3, horizon=7, hold_steps=1)


def recorded(number):
    steps = {"interventions": np.array([0, 1]), "round": np.full(2, number)}
    steps["labelled"] = np.array([1, 1], np.uint8)
    return Episode(
        obs={"s": np.zeros((2, 1))},
        actions=np.zeros((2, 1)),
        rewards=np.zeros(2),
        terminals=np.zeros(2),
        timeouts=np.array([0, 1]),
        attrs={"round": number, "success": True},
        steps=steps,
    )


@pytest.fixture
def rounds(monkeypatch, tmp_path):
    """Runs rounds; notes the configurations of trainings and the episodes that are played."""
    seen = Words(configs=[], played=[], closed=0)

    class Player:
        def __init__(self, scene):
            seen.scene = scene

        def env(self):
            return Words(reset=lambda seed: ({"s": np.zeros(1)}, {}))

        def close(self):
            seen.closed += 1

        def play(self, number, index, policy, supervisor, *, states):
            seen.played.append((number, index, policy, supervisor, states))
            return recorded(number)

    def train(config, *, quiet):
        assert quiet
        seen.configs.append(config)
        return Words(exit_code=0, checkpoint=f"{len(seen.configs)}_best.pth", results={})

    monkeypatch.setattr(module, "SupervisedPlayer", Player)
    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(module, "find_checkpoint", lambda name: tmp_path / name)
    monkeypatch.setattr(
        module, "policy_from_checkpoint", lambda device, ckpt_path: (f"policy of {ckpt_path}", {})
    )

    def run(*overrides, plan=PLAN, name="bc", config=None, env=META, **words):
        config = config or tiny_config(name, *overrides, obs={"s": 1})
        words = {"init": "first.pth", **words}
        supervise = words.pop("supervise", "supervisor of {}".format)
        seen.progress = dagger(config, plan, supervise, env, tmp_path / "rounds", **words)
        return seen

    return run


def test_each_round_is_played_by_the_last_policy_and_trained_on_all_data(rounds, tmp_path):
    calls = []
    seen = rounds(
        on_episode=lambda *given: calls.append(given),
        on_round=lambda over: calls.append(over.number),
    )
    first = str(tmp_path / "first.pth")
    assert [over.checkpoint for over in seen.progress.rounds] == [first, "1_best.pth", "2_best.pth"]
    assert [(over.episodes, over.steps, over.labels) for over in seen.progress.rounds] == [
        (0, 0, 0),
        (2, 4, 4),
        (2, 4, 8),
    ]
    players = [(1, n, f"policy of {first}", "supervisor of 1", False) for n in range(2)]
    players += [(2, n, "policy of 1_best.pth", "supervisor of 2", False) for n in range(2)]
    assert seen.played == players
    assert calls == [0, (1, 1), (1, 2), 1, (2, 1), (2, 2), 2]
    for number, config in enumerate(seen.configs, 1):
        assert config.train.data[0].path == str(tmp_path / "rounds/demos.hdf5")
        assert config.train.output_dir == str(tmp_path / f"rounds/round_{number}")
        assert config.experiment.validate is False and config.train.sample_weight.kind is None
        assert config.experiment.save.on_best_validation is False
        assert config.experiment.rollout.horizon == 10
    assert [config.experiment.ckpt_path for config in seen.configs] == [first, "1_best.pth"]
    scene = seen.scene
    assert (scene.seed, scene.horizon, scene.hold_steps, scene.obs_keys) == (3, 7, 1, ("s",))
    with DatasetFile(tmp_path / "rounds/demos.hdf5") as file:
        assert [int(file.attrs(demo)["round"]) for demo in file.demos()] == [1, 1, 2, 2]
    assert seen.closed == 1
    again = rounds(plan=DaggerPlan(**{**vars(PLAN), "rounds": 3}))
    assert [number for number, *_ in again.played[4:]] == [3, 3]


def test_without_a_horizon_it_is_that_of_the_episodes(rounds):
    seen = rounds("experiment.rollout.horizon=null")
    assert {config.experiment.rollout.horizon for config in seen.configs} == {7}


@pytest.mark.parametrize(
    ("results", "rate", "mean"),
    [
        (
            {"best": {"success_rate": 0.5, "mean_return": 2.0}, "final": {"success_rate": 0.1}},
            0.5,
            2.0,
        ),
        ({"best": None, "final": {"success_rate": 0.1}}, 0.1, None),
        ({}, None, None),
    ],
)
def test_the_result_of_a_round_is_its_best_evaluation(rounds, monkeypatch, results, rate, mean):
    result = Words(exit_code=0, checkpoint="x.pth", results=results)
    monkeypatch.setattr(module, "train", lambda *given, **words: result)
    over = rounds().progress.rounds[1]
    assert (over.success_rate, over.mean_return, over.rollout_success) == (rate, mean, 1.0)


def test_steps_that_are_learned(rounds):
    some = DaggerPlan(**{**vars(PLAN), "rounds": 1, "label_every": 2})
    config = rounds(plan=some).configs[0]
    assert (config.train.sample_weight.kind, config.train.sample_weight.key) == ("key", "labelled")


def test_steps_by_hand_are_learned_where_not_all_are_labelled(rounds):
    one = DaggerPlan(**{**vars(PLAN), "rounds": 1})
    assert rounds(plan=one, labels_all=False).configs[0].train.sample_weight.kind == "interventions"


def test_plans():
    assert DaggerPlan() == DaggerPlan(5, 10, 0, 200, 8, None, 1, None)
    plans = [DaggerPlan(), DaggerPlan(label_every=2), DaggerPlan(ask_above=0.0)]
    assert [plan.labels_some for plan in plans] == [False, True, True]


@pytest.mark.parametrize(
    ("overrides", "words", "refusal"),
    [
        ((), {"init": None}, "begins with a policy: give demonstrations (--dataset) or a"),
        (('train.action_keys=["a"]', 'train.action_config={"a": {}}'), {}, "train.action_keys: ['a']; supervisors"),
        ((), {"plan": DaggerPlan(ask_above=0.9)}, "--ask-above: bc reports no uncertainty"),
        (("train.sample_weight.kind=interventions",), {"plan": DaggerPlan(label_every=2)}, "'interventions'; if not"),
        ((), {"workers": 2, "supervise": lambda number: None}, "the supervisor cannot be sent to workers"),
        ((), {"workers": 2, "env": {"env_name": "robot:arm", "type": 4}}, "robot:arm: is a single robot: leave"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(rounds, overrides, words, refusal):
    with refused(refusal, error=ConfigError):
        rounds(*overrides, **words)


def test_a_training_that_is_interrupted_ends_the_rounds(rounds, monkeypatch):
    made = []
    result = Words(exit_code=130, checkpoint="x.pth", results={})
    monkeypatch.setattr(module, "train", lambda *given, **words: made.append(given) or result)
    seen = rounds()
    assert (seen.progress.exit_code, len(seen.progress.rounds), len(made)) == (130, 1, 1)


def test_a_training_without_a_checkpoint_is_refused(rounds, monkeypatch):
    result = Words(exit_code=0, checkpoint=None, results={})
    monkeypatch.setattr(module, "train", lambda *given, **words: result)
    with refused("experiment.save.enabled is false, but each round", error=TrainingError):
        rounds()


def test_environments_that_do_not_fit(rounds, monkeypatch):
    def fail(env):
        raise RuntimeError("no display")

    monkeypatch.setattr(module, "first_observation", lambda env: {"z": 1})
    with refused("the environment has no observation 's', but z", error=EnvError):
        rounds()
    monkeypatch.setattr(module, "first_observation", fail)
    with refused("cannot be opened (RuntimeError: no display)", error=EnvError):
        rounds()


@pytest.mark.parametrize(
    ("name", "overrides", "known"),
    [
        ("bc", (), False),
        ("bc_ensemble", (), True),
        ("flow_policy", (), False),
        ("flow_policy", ("algo.uncertainty_samples=4",), True),
    ],
)
def test_policies_with_an_uncertainty(name, overrides, known):
    assert reports_uncertainty(tiny_config(name, *overrides)) is known
