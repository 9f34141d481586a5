"""Online RL of particular tasks: goals, stages, several agents, masked actions, memory."""

import json

import numpy as np
import pytest
import torch

from imitate import load_config, policy_from_checkpoint
from imitate.checks.env import check_env
from imitate.config.loading import bundled
from imitate.config.online import CurriculumConfig
from imitate.envs import make_env
from imitate.envs.worlds.tasks import Recall
from imitate.errors import ConfigError, EnvError
from imitate.evaluate.evaluate import EvalSettings, evaluate
from imitate.system.trust import trust, trust_env
from imitate.train.online.batches import OnlineBatches
from imitate.train.online.curriculum import Curriculum
from imitate.train.online.parts import make_learner
from imitate.train.online.setup import build_online
from imitate.train.trainer import train
from tests.refusals import refused

from .conftest import PENDULUM, assert_same_nets, last, online_tree, records, resume, stored_steps

pytestmark = pytest.mark.usefixtures("importable_env")
NIGHTLY = pytest.mark.nightly
SEVERAL = {"num_envs": 4, "collect_steps": 16, "warmup_steps": 64, "update_ratio": 0.1}


def learned(config, folder):
    return train(config, output_dir=folder, quiet=True)


def last_path(run):
    return run.run_dir / "checkpoints/last.pth"


# ---- goals ---------------------------------------------------------------------------------------

GOALS = {"env_name": "goals:Goals-v0", "type": 2, "env_kwargs": {}}
SEEN = ("observation", "desired_goal")


def goals(name="sac", obs=SEEN, online=(), **sections):
    looks_back = {"hindsight": {"enabled": True}, "buffer_size": 120, "warmup_steps": 50}
    short = {"epoch_every_n_steps": 100, "rollout": {"horizon": 10}}
    online = {**looks_back, **dict(online)}
    return online_tree(name, GOALS, obs, online, **{"experiment": short, **sections})


def faulty(fault):
    return goals(online={"env": {**GOALS, "env_kwargs": {"fault": fault}}})


def built(config):
    return build_online(load_config(config), "cpu")


@pytest.mark.parametrize(
    ("name", "online"),
    [
        ("sac", {"prioritized": {"enabled": True}}),
        pytest.param("td3", {"num_envs": 2}, marks=NIGHTLY),
        pytest.param("rlpd", {"demo_ratio": 0.0}, marks=NIGHTLY),
        ("ddpg", {"num_envs": 2, "num_workers": 1, "collect_steps": 5}),
    ],
)
def test_every_algorithm_that_replays_may_look_back(tmp_path, name, online):
    keys = {"num_epochs": 2, "obs_normalization": "mean_std"}
    result = learned(goals(name, online=online, train=keys), tmp_path)
    assert result.exit_code == 0
    # Achieved goals are remembered, and no input of the policy.
    assert list(last(result)["shape_metadata"]["raw_shapes"]) == ["desired_goal", "observation"]
    assert stored_steps(result)["layout"]["columns"]["achieved_goal"] == [0, 2]
    assert all(np.isfinite(v) for r in records(result) for v in r.values() if isinstance(v, float))


def test_a_resumed_run_towards_goals_ends_bit_equal(tmp_path):
    keys = {"obs_normalization": "mean_std", "num_epochs": 2}
    config = goals(train=keys, experiment={"epoch_every_n_steps": 40})
    part = train(config, output_dir=tmp_path, quiet=True, overrides=["train.num_epochs=1"])
    assert_same_nets(learned(config, tmp_path), resume(part, 2))


def test_goals_share_their_statistics_whether_desired_or_achieved():
    learner = make_learner(built(goals(train={"obs_normalization": "mean_std"})))
    seen = {
        "observation": np.zeros((2, 2), np.float32),
        "achieved_goal": np.array([[1, 0], [3, 0]], np.float32),
        "desired_goal": np.array([[5, 0], [7, 0]], np.float32),
    }
    learner.obs_normalizer.add(seen)
    learner.obs_normalizer.apply(learner.algo.preprocess)
    # 1, 3, 5, 7: mean 4, variance (9 + 1 + 1 + 9) / 4 = 5.
    prepared = learner.algo.preprocess.prepare_obs(seen)["desired_goal"][:, 0]
    assert prepared.tolist() == pytest.approx([1 / 5**0.5, 3 / 5**0.5])


@pytest.mark.parametrize(
    ("end_at_success", "given", "ends"),
    [(True, None, True), (True, False, False), (False, None, False)],
)
def test_where_success_ends_episodes_goals_do(end_at_success, given, ends):
    chosen = {"enabled": True, "ends_at_goal": given, "share": 0.5, "strategy": "final"}
    config = goals(online={"end_at_success": end_at_success, "hindsight": chosen})
    found = make_learner(built(config)).memory.hindsight
    assert (found.ends_at_goal, found.share, found.strategy) == (ends, 0.5, "final")


PIXELS = faulty("pixels")
PIXELS["observation"]["modalities"]["obs"] = {"low_dim": ["observation"], "rgb": ["desired_goal"]}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (goals("ppo"), "ppo has no replay buffer"),
        (goals(algo={"n_step": 3}), "set algo.n_step to 1"),
        (goals(obs=("observation",)), "must observe 'desired_goal', a vector, but does not obs"),
        (goals("sqil"), "does not learn from the environment's rewards"),
        (goals("cal_ql"), "needs returns of whole episodes"),
        (PIXELS, "a vector, but has it under rgb"),
    ],
)
def test_what_cannot_look_back_is_refused_in_one_line(config, words):
    with refused(words, error=ConfigError):
        built(config)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("one", "an array of shape () for 4 goals, expected (4,)"),
        ("first", "for 4 goals, but | for one after another"),
        ("effort", "steps gave the rewards |, but compute_reward gives"),
    ],
)
def test_rewards_that_goals_do_not_tell_are_refused(fault, words):
    setup = built(faulty(fault))
    with refused(words, error=EnvError):
        make_learner(setup)


def test_rewards_of_many_goals():
    env = make_env(GOALS)
    achieved = np.array([[0, 0], [0, 0], [1, 1]], np.float32)
    desired = np.array([[0, 0.05], [0, 0.2], [1, 1]], np.float32)
    assert env.goal_rewards(achieved, desired).tolist() == [0, -1, 0]
    env.close()
    without = make_env(PENDULUM)
    with refused("the environment has no goals", error=EnvError):
        without.goal_rewards(achieved, desired)
    without.close()


# ---- stages --------------------------------------------------------------------------------------


def curriculum(*untils, **settings):
    stages = [{"until": until} for until in untils] + [{}]
    metas = [{"env_name": "walk", "env_kwargs": {"length": n}} for n in range(len(stages))]
    return Curriculum(CurriculumConfig.model_validate({"stages": stages, **settings}), metas)


def numbers(success=0.0, mean_return=0.0):
    return {"Curriculum/Success_Rate": success, "Curriculum/Return": mean_return}


def test_a_stage_ends_where_all_its_conditions_hold():
    made = curriculum({"success_rate": 0.8, "min_steps": 100}, {"mean_return": 5.0})
    assert not made.judge(1, 50, numbers(success=0.9))  # too early
    assert not made.judge(2, 150, numbers(success=0.7))
    assert made.judge(3, 200, numbers(success=0.8))
    assert made.stage == 1
    assert not made.judge(4, 210, numbers(success=1.0, mean_return=4.9))
    assert made.judge(5, 220, numbers(mean_return=5.0))
    assert made.is_last and not made.judge(6, 230, numbers(1.0, 9.0))


def test_steps_are_counted_from_the_stage_s_beginning():
    made = curriculum({"min_steps": 100}, {"min_steps": 100})
    judged = [made.judge(*at, numbers()) for at in ((1, 100), (2, 199), (3, 200))]
    assert judged == [True, False, True]


def test_a_stage_whose_success_is_never_reported_is_refused():
    unknown = {"Curriculum/Return": 9.0}
    assert curriculum({"mean_return": 5.0}).judge(1, 10, unknown)
    with refused("until.success_rate, but its environment reports no success", error=ConfigError):
        curriculum({"success_rate": 0.5}).judge(1, 10, unknown)


def test_an_evaluation_is_judged_once():
    made, again = (curriculum({"success_rate": 0.5}, {"success_rate": 0.5}) for _ in range(2))
    assert made.judge(1, 10, numbers(success=1.0))
    again.load_state_dict(made.state_dict())
    assert not again.judge(1, 10, numbers(success=1.0)) and again.stage == 1


@pytest.mark.parametrize(("evaluate", "lengths"), [("both", [1, 0]), ("stage", [0]), ("last", [1])])
def test_where_evaluations_are_played(evaluate, lengths):
    made = curriculum({"success_rate": 0.5}, evaluate=evaluate)
    assert [meta["env_kwargs"]["length"] for meta in made.evaluated] == lengths
    made.judge(1, 10, numbers(success=1.0))
    assert [meta["env_kwargs"]["length"] for meta in made.evaluated] == [1]


LEDGE = "imitate.envs.worlds.tasks:Ledge-v0"
ALWAYS = {"until": {"success_rate": 0.0}}


def ledge(name="ppo", stages=(), rollouts=True, env=LEDGE, num_workers=0, **settings):
    stages = stages or [{"name": "near", "env_kwargs": {"length": 1}, **ALWAYS}, {}]
    online = {"num_envs": 2, "num_workers": num_workers, "collect_steps": 8, "warmup_steps": 16}
    online |= {"update_ratio": 0.1, "curriculum": {"stages": stages, **settings}}
    rollout = {"enabled": rollouts, "horizon": 20, "rate": 2}
    experiment = {"epoch_every_n_steps": 64, "rollout": rollout}
    return online_tree(name, env, online=online, experiment=experiment, train={"num_epochs": 4})


def stages_of(result):
    return [record["Curriculum/Stage"] for record in records(result)]


@pytest.mark.parametrize(
    ("name", "settings", "steps"),
    [
        ("ppo", {"num_workers": 1}, 0),
        *(("dqn", {"buffer": "clear"}, 64 * 2), ("dqn", {"buffer": "keep"}, 64 * 4)),
    ],
)
def test_a_run_goes_through_its_stages(tmp_path, name, settings, steps):
    result = learned(ledge(name, **settings), tmp_path)
    assert stages_of(result) == [1, 1, 2, 2]
    # The first evaluation has two environments; the checkpoint is judged by the last stage alone.
    first, second = records(result, "rollout")
    assert first["Curriculum/Stage"] == 1 and second["Curriculum/Stage"] == 2
    assert second["Curriculum/Return"] == second["Rollout/Return"]
    assert "stage 1 of 2, near" in (result.run_dir / "log.txt").read_text()
    ckpt = last(result)
    assert ckpt["env_metadata"]["env_kwargs"] == {}
    assert ckpt["train_state"]["online"]["curriculum"]["stage"] == 1
    if name == "dqn":
        assert int(stored_steps(result)["rows"]["live"].sum()) == steps


def test_a_run_that_is_killed_after_an_evaluation_resumes_in_the_next_stage(tmp_path, monkeypatch):
    """The checkpoint is of the stage before; the evaluation that ended it is in the metrics file."""

    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OnlineBatches, "begin_stage", killed)
        with pytest.raises(KeyboardInterrupt):
            learned(ledge(), tmp_path)
    (folder,) = tmp_path.glob("online/*")
    before = last(folder)["train_state"]
    assert before["online"]["curriculum"]["stage"] == 0 and before["epoch"] == 2
    assert stages_of(train(None, resume=folder, quiet=True)) == [1, 1, 2, 2]


def test_stages_need_an_end_evaluations_and_equal_spaces(tmp_path):
    with refused("stage 1 of 2 has no condition for its end", error=ConfigError):
        load_config(ledge(stages=[{}, {}]))
    with refused("stages are judged by evaluations", error=ConfigError):
        learned(ledge(rollouts=False), tmp_path)
    stages = [{"env_kwargs": {"mask": "observation"}, **ALWAYS}, {}]
    doors = {"env_name": DOORS, "type": 2, "env_kwargs": {"mask": "none"}}
    with refused("no observation 'flat'", error=EnvError):
        learned(ledge(stages=stages, env=doors), tmp_path)


# ---- several agents: the two that carry a table --------------------------------------------------

CARRY = "pettingzoo:imitate.envs.worlds.team_tasks"
META = {"env_name": CARRY, "type": 2, "env_kwargs": {}}


def carry(name="ppo", obs=("own", "other"), env=CARRY, **online):
    experiment = {"epoch_every_n_steps": 256, "rollout": {"horizon": 40}}
    keys = {"num_epochs": 2, "batch_size": 32}
    return online_tree(name, env, obs, {**SEVERAL, **online}, experiment=experiment, train=keys)


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    return learned(carry(), tmp_path_factory.mktemp("team"))


def test_returns_are_logged_of_each_agent_and_summed_and_the_run_is_resumed(team):
    found = records(team)[-1]
    each = [found[f"Metrics/AverageEnvInfo[return_{side}]"] for side in ("left", "right")]
    assert found["Metrics/AverageEnvInfo[team_return]"] == pytest.approx(sum(each))
    assert records(resume(team, 3))[-1]["epoch"] == 3


def test_an_evaluation_tells_of_each_agent(team):
    three = EvalSettings(episodes=3, seed=5)
    told, again = (evaluate(last_path(team), settings=three).to_dict() for _ in range(2))
    assert set(told["agents"]) == {"left", "right"}
    for episode in told["per_episode"]:
        agents = episode["agents"].values()
        assert episode["episode_return"] == pytest.approx(sum(a["return"] for a in agents))
        assert episode["success"] == all(a["success"] for a in agents)
    assert again["per_episode"] == told["per_episode"]
    with refused("has several agents: leave --mode vector", error=EnvError):
        evaluate(last_path(team), settings=EvalSettings(episodes=1, mode="vector"))


def test_a_policy_acts_for_all_agents_at_once(team):
    policy, _ = policy_from_checkpoint(ckpt_path=str(last_path(team)))
    seen, _ = make_env(META, team=True).reset(seed=0)
    batch = {key: np.stack([obs[key] for obs in seen]) for key in policy.obs_keys}
    assert policy(batch, batched_ob=True).shape == (2, 2)


def test_a_replaying_algorithm_learns_from_workers_with_agent_ids(tmp_path):
    config = carry("dqn", ("own", "other", "agent_id"), num_workers=1, num_envs=2)
    assert learned(config, tmp_path).status == "finished"


def test_an_opponent_is_no_lane_and_is_played_from_its_checkpoint(team, tmp_path):
    path = str(last_path(team))
    for policy in (path, "random"):
        meta = {**META, "env_kwargs": {"opponents": {"ri.*": policy}}}
        trust(path)
        env = make_env(meta, team=True)
        assert env.agents == ("left",)
        env.reset(seed=0)
        outcomes = [env.step(np.array([[1.0, 0.0]])) for _ in range(2)]
        assert all(len(outcome) == 1 for outcome in outcomes)
    result = learned(carry(env=meta), tmp_path)
    assert "Metrics/AverageEnvInfo[return_right]" not in records(result)[-1]


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        (CARRY, {"opponents": {"nobody": "random"}}, "'nobody', which matches none of the agents"),
        (CARRY, {"opponents": {".*": "random"}}, "match all agents"),
        (CARRY, {"opponents": {"[": "random"}}, "which is not a regular expression"),
        (CARRY, {"opponents": ["a"]}, "expected a dict of policies"),
        (CARRY, {"opponents": {"left": "/no/such.pth"}}, "there is no checkpoint"),
        (CARRY, {"wheels": 4}, "does not accept its env_kwargs"),
        (f"{CARRY}:absent", {}, "pettingzoo:"),
        ("pettingzoo:imitate.envs.absent", {}, "cannot be imported"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(name, kwargs, words):
    meta = {"env_name": name, "type": 2, "env_kwargs": kwargs}
    trust_env(meta)
    with refused(words, error=EnvError):
        make_env(meta, team=True)


def test_who_can_handle_one_agent_only_is_told_and_the_checks_take_several():
    with refused("has several agents, which only online training", error=EnvError):
        make_env(META)
    findings = {f.name: f for f in check_env(lambda: make_env(META, team=True), META)}
    assert {f.verdict for f in findings.values()} == {"ok"}
    assert "left, right" in findings["agents"].words


# ---- masks of actions: rooms with doors, of which most are closed --------------------------------

DOORS = "imitate.envs.worlds.tasks:Doors-v0"


def doors(name, mask="info", **online):
    env = {"type": 2, "env_name": DOORS, "env_kwargs": {"mask": mask}}
    obs = ["observation" if mask == "observation" else "flat"]
    experiment = {"epoch_every_n_steps": 128, "rollout": {"horizon": 20}}
    keys = {"num_epochs": 2, "batch_size": 32, "obs_normalization": "mean_std"}
    online = {**SEVERAL, "update_ratio": 0.25, **online}
    return online_tree(name, env, obs, online, experiment=experiment, train=keys)


def success(result):
    return records(result)[-1]["Metrics/AverageEnvInfo[success]"]


@pytest.mark.parametrize(
    ("name", "mask", "online"),
    [
        pytest.param("a2c", "observation", {}, marks=NIGHTLY),
        pytest.param("dqn", "info", {"num_workers": 1}, marks=NIGHTLY),
        ("sac", "observation", {}),
    ],
)
def test_no_closed_door_is_tried_in_warmup_training_and_evaluation(tmp_path, name, mask, online):
    result = learned(doors(name, mask, **online), tmp_path)
    assert success(result) == 1.0
    config = json.loads((result.run_dir / "config.json").read_text())
    assert config["observation"]["modalities"]["obs"]["mask"] == ["action_mask"]
    four = EvalSettings(episodes=4, horizon=20)
    assert evaluate(last_path(result), settings=four).success_rate == 1.0
    if name == "sac":
        assert success(resume(result, 3)) == 1.0


def test_without_the_mask_closed_doors_end_the_episodes(tmp_path):
    assert success(learned(doors("ppo", "none"), tmp_path)) == 0.0


def test_a_policy_asks_for_the_mask_and_the_mask_is_not_normalized(tmp_path):
    result = learned(doors("ppo"), tmp_path)
    assert success(result) == 1.0
    policy, _ = policy_from_checkpoint(ckpt_path=str(last_path(result)))
    assert set(policy.obs_keys) == {"flat", "action_mask"}
    affine = policy.algo.preprocess.normalization.obs_affine
    assert affine("action_mask")[0].tolist() == [0.0] * 6
    assert not torch.equal(affine("flat")[0], torch.zeros(8))
    lockstep = EvalSettings(episodes=4, horizon=20, mode="vector")
    played = evaluate(last_path(result), settings=lockstep)
    assert played.success_rate == 1.0


def test_a_mask_of_another_size_than_the_choices_is_refused(tmp_path):
    config = doors("ppo")
    config["observation"] = {"modalities": {"obs": {"low_dim": [], "mask": ["flat"]}}}
    with refused("has shape (8,), wanted one number for each of its 6", error=ConfigError):
        learned(config, tmp_path)


# ---- memory: policies learn what the forgetful cannot, and resume where they stopped -------------

ROLLOUTS = "experiment.rollout.enabled=false"
PPO, SAC = "ppo/ppo_recurrent", "sac/sac_recurrent"
MERLIN = "merlin/merlin_recall"


def learn(name, tmp_path, *overrides):
    quiet = ["experiment.logging.log_tb=false", ROLLOUTS]
    return learned(load_config(bundled(name), [*quiet, *overrides]), tmp_path)


def answers(result, continuous):
    """Share of questions that the final policy answers right; half of the cues are of either kind."""
    policy, _ = policy_from_checkpoint(ckpt_path=last_path(result))
    shown = {-1.0: [], 1.0: []}
    for seed in range(100):
        env = Recall(continuous)
        shown[float(env.reset(seed=seed)[0][0])].append((env, seed))
    envs, seeds = zip(*shown[-1.0][:20], *shown[1.0][:20], strict=True)
    seen = np.stack([env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)])
    policy.start_episode()
    over = False
    while not over:
        actions = policy({"flat": seen}, batched_ob=True)
        chosen = actions if continuous else actions.argmax(-1)
        steps = [env.step(action) for env, action in zip(envs, chosen, strict=True)]
        seen, over = np.stack([step[0] for step in steps]), steps[0][2]
    return np.mean([step[4]["success"] for step in steps])


@pytest.mark.slow("trains until it remembers")
@pytest.mark.parametrize(
    ("name", "epochs", "continuous"), [(PPO, 3, False), pytest.param(SAC, 2, True, marks=NIGHTLY)]
)
def test_who_remembers_answers_and_who_forgets_guesses(tmp_path, name, epochs, continuous):
    remembering = learn(name, tmp_path, f"train.num_epochs={epochs}")
    assert answers(remembering, continuous) == 1.0
    brief = small(name, "train.num_epochs=1", "algo.rnn.enabled=false")
    forgetful = learn(name, tmp_path, *brief)
    # When it is asked, it sees the same in all episodes.
    assert answers(forgetful, continuous) == 0.5


def small(name, *overrides):
    """Trainings whose epochs are over with an episode, of 8 steps."""
    epoch = 80 if name == SAC else 64
    sac = ["num_envs=1", "warmup_steps=40", "update_ratio=0.2"]
    online = sac if name == SAC else ["num_envs=2", "collect_steps=16"]
    settings = [f"train.online.{words}" for words in online]
    return [f"experiment.epoch_every_n_steps={epoch}", *settings, *overrides]


@pytest.mark.slow("two trainings with a memory, and one that goes on")
@pytest.mark.parametrize(
    ("name", "rnn_type"),
    [
        *((PPO, "GRU"), (SAC, "LSTM")),
        *(
            pytest.param(*case, marks=NIGHTLY)
            for case in ((PPO, "LSTM"), (SAC, "GRU"), (MERLIN, "LSTM"))
        ),
    ],
)
def test_a_resumed_run_with_a_memory_ends_bit_equal(tmp_path, name, rnn_type):
    settings = small(name, f"algo.rnn.rnn_type={rnn_type}")
    whole = learn(name, tmp_path, *settings, "train.num_epochs=2")
    resumed = resume(learn(name, tmp_path, *settings, "train.num_epochs=1"), 2)
    assert last(whole)["train_state"]["step"] == last(resumed)["train_state"]["step"]
    assert_same_nets(whole, resumed)
    if name.startswith("sac"):
        first, second = (stored_steps(run)["rows"] for run in (whole, resumed))
        for key in [f"memory/{part}" for part in ("hc" if rnn_type == "LSTM" else "h")]:
            assert first[key].abs().sum() > 0
            assert torch.equal(first[key], second[key])


@pytest.mark.parametrize("name", [SAC, pytest.param(PPO, marks=NIGHTLY)])
def test_workers_bring_the_states_along(tmp_path, name):
    workers = small(name, "train.online.num_envs=2", "train.online.num_workers=1")
    found = records(learn(name, tmp_path, *workers, "train.num_epochs=2"))[-1]
    assert found["Train/Updates"] > 0
    assert np.isfinite(found["Train/Loss"])
