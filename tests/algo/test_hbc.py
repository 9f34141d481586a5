"""The hierarchy: the actor sees the subgoal, each client has its own, every part resumes."""

import pytest
import torch

from imitate import algo_factory
from imitate.config.data_needs import Subgoals
from imitate.errors import DatasetError
from imitate.policy.rollout_policy import RolloutPolicy
from tests.tiny import tiny_algo, tiny_config

SHAPES = {"x": (1,), "task": (2,)}


def make(actor=None, planner=None, train=None, **section):
    section["planner"] = {"vae": {"latent_dim": 2, "kl_weight": 0.02}, **(planner or {})}
    section["actor"] = {"rnn": {"enabled": False}, **(actor or {})}
    train = {"num_epochs": 10, "seq_length": 1, **(train or {})}
    return tiny_algo("hbc", obs={"x": 1}, hidden=[64], algo=section, train=train)


def raw(size=64, steps=1, seed=0, every=0):
    """From anywhere, to the left or to the right: the action and where it leads say the same."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(size, 1, 1, generator=generator) - 0.5
    side = torch.randint(2, (size, 1, 1), generator=generator) * 2.0 - 1.0
    subgoal = x[:, 0] + side[:, 0]
    if every:
        ahead = torch.arange(1, every + 1).view(1, every, 1) / every
        subgoal = x + side * ahead
    return {
        "obs": {"x": x.expand(-1, steps, -1)},
        "actions": (0.5 * side).expand(-1, steps, -1),
        "subgoals": {"x": subgoal},
    }


def learn(algo, steps, size=64, **kwargs):
    algo.set_train()
    for step in range(steps):
        algo.train_on_batch(algo.process_batch_for_training(raw(size, seed=step, **kwargs)), 1)
    algo.set_eval()
    return algo


FAST = {
    "planner": {
        "vae": {"latent_dim": 2, "kl_weight": 0.02},
        "optim_params": {"goal_network": {"learning_rate": {"initial": 0.01}}},
    },
    "actor": {"optim_params": {"policy": {"learning_rate": {"initial": 0.01}}}},
}


@pytest.mark.parametrize("recurrent", [False, True])
def test_another_subgoal_gives_another_action(recurrent):
    rnn = {"enabled": recurrent, "hidden_dim": 8}
    algo = make(actor={"rnn": rnn}, train={"seq_length": 10 if recurrent else 1})
    assert algo.actor.goal_shapes == {"x": (1,)}
    algo.set_eval()
    obs = {"x": torch.zeros(1, 1)}
    state = algo.act(obs, algo.initial_state(1)).state

    def action(subgoal):
        held = {"policy": {**state["policy"], "subgoal": {"x": torch.tensor([[subgoal]])}}}
        return algo.act(obs, held).action

    assert not torch.allclose(action(-2.0), action(2.0), atol=1e-3)


def test_in_training_the_actor_s_goal_is_the_planner_s_target():
    algo = make()
    ready = algo.process_batch_for_training(raw(4))
    goal = algo.goals_of_actor(ready)
    assert torch.equal(goal["x"], ready["planner"]["subgoals"]["x"])
    seen = []
    algo.actor.train_on_batch = lambda batch, *_: (
        seen.append(batch["goal_obs"]) or {"Loss": torch.zeros(())}
    )
    algo.train_on_batch(ready, 1)
    assert torch.equal(seen[0]["x"], ready["planner"]["subgoals"]["x"])


def test_in_cascade_it_is_what_the_planner_names():
    algo = make(mode="cascade")
    ready = algo.process_batch_for_training(raw(4))
    algo.planner.sample_subgoals = lambda obs, goal, number, _: {
        "x": torch.full((len(obs["x"]), number, 1), 8.0 + number)
    }
    assert algo.goals_of_actor(ready)["x"].tolist() == [[9.0]] * 4


def test_random_subgoals_are_of_all_steps_on_the_way_and_the_planner_s_is_the_last():
    algo = make(actor_use_random_subgoals=True, planner={"subgoal_horizon": 4})
    assert algo.algo_config.data_needs(algo.global_config).subgoals == Subgoals(
        ("x",), 4, every=True
    )
    ready = algo.process_batch_for_training(raw(400, every=4))
    every = ready["actor"]["subgoals"]["x"][..., 0]
    assert torch.equal(ready["planner"]["subgoals"]["x"][:, 0], every[:, 3])
    torch.manual_seed(0)
    chosen = algo.goals_of_actor(ready)["x"]
    counts = (every == chosen).sum(0)
    assert counts.sum() == 400
    assert (counts > 70).all()
    with pytest.raises(DatasetError, match="actor_use_random_subgoals needs all"):
        algo.goals_of_actor(algo.process_batch_for_training(raw(4)))


def test_a_subgoal_holds_for_its_interval_and_each_client_has_its_own():
    algo = make(subgoal_update_interval=3)
    algo.set_eval()
    torch.manual_seed(0)
    obs, state, named = {"x": torch.zeros(2, 1)}, algo.initial_state(2), []
    for step in range(7):
        if step == 2:
            state = algo.reset_state(state, torch.tensor([False, True]))
        result = algo.act(obs, state)
        state = result.state
        assert torch.equal(result.extras["subgoal/x"], state["policy"]["subgoal"]["x"])
        named.append(result.extras["subgoal/x"][:, 0].tolist())
    first, second = zip(*named, strict=True)
    assert first[0] == first[1] == first[2] != first[3] == first[4] == first[5] != first[6]
    assert second[0] == second[1] != second[2] == second[3] == second[4] != second[5]


def test_who_plans_leaves_the_draws_of_the_others_as_they_are():
    algo = make(actor={"gmm": {"enabled": True}})
    algo.set_eval()
    obs = {"x": torch.zeros(2, 1)}

    def run(reset):
        torch.manual_seed(0)
        state, actions = algo.initial_state(2), []
        for step in range(5):
            if step == 2 and reset:
                state = algo.reset_state(state, torch.tensor([False, True]))
            action, state, _ = algo.act(obs, state, explore=True)
            actions.append(action[0])
        return torch.stack(actions)

    assert torch.equal(run(False), run(True))


def walk(algo, rows=20, steps=4):
    """Where the sum of actions leads from 0."""
    algo.set_eval()
    x, state = torch.zeros(rows, 1), algo.initial_state(rows)
    with torch.no_grad():
        for _ in range(steps):
            action, state, _ = algo.act({"x": x}, state)
            x = x + 0.25 * action
    return x[:, 0]


def test_where_two_ways_lead_on_it_takes_one_and_cloning_stays_between():
    """Each step left and right are as good. The mean action is 0; a subgoal holds for four steps of 0.125."""
    hbc = learn(make(**FAST, subgoal_update_interval=4), 150)
    rates = {"optim_params": FAST["actor"]["optim_params"]}
    bc = learn(tiny_algo("bc", obs={"x": 1}, hidden=[64], algo=rates), 150)
    reached = walk(hbc)
    assert (reached > 0).any()
    assert (reached < 0).any()
    assert float(reached.abs().median()) > 0.3
    assert float(walk(bc).abs().max()) < 0.2


@pytest.mark.parametrize("corrected", [False, True])
def test_a_latent_is_a_subgoal_too(corrected):
    latent = {"enabled": True, "prior_correction": {"enabled": corrected, "num_samples": 20}}
    algo = make(**FAST, latent_subgoal=latent, subgoal_update_interval=4)
    assert algo.actor.goal_shapes == {"latent_subgoal": (2,)}
    assert algo.initial_state(3)["policy"]["subgoal"]["latent_subgoal"].shape == (3, 2)

    def both_ways(reached):
        return (reached > 0).any() and (reached < 0).any() and reached.abs().median() > 0.25

    assert any(both_ways(walk(learn(algo, 50))) for _ in range(8))


def test_latents_of_random_subgoals_are_those_of_the_chosen_ones():
    algo = make(
        actor_use_random_subgoals=True,
        latent_subgoal={"enabled": True},
        planner={"subgoal_horizon": 4},
    )
    ready = algo.process_batch_for_training(raw(8, every=4))
    seen = []
    algo.planner.latents_of = lambda subgoals, *_: seen.append(subgoals["x"]) or torch.zeros(8, 2)
    algo.goals_of_actor(ready)
    every = ready["actor"]["subgoals"]["x"]
    assert ((every == seen[0][:, None]).squeeze(-1).sum(1) == 1).all()


@pytest.mark.parametrize(("corrected", "samples"), [(True, 7), (False, 0)])
def test_latents_in_data_are_the_best_of_those_of_the_correction(corrected, samples):
    correction = {"enabled": corrected, "num_samples": 7}
    algo = make(latent_subgoal={"enabled": True, "prior_correction": correction})
    seen = []
    algo.planner.latents_of = lambda *given: seen.append(given[-1]) or torch.zeros(4, 2)
    algo.goals_of_actor(algo.process_batch_for_training(raw(4)))
    assert seen == [samples]
    algo.set_eval()
    algo.planner.sample_latents = lambda obs, goal, number, _: torch.full((1, number, 2), number)
    step = algo.act({"x": torch.zeros(1, 1)}, algo.initial_state(1))
    assert step.state["policy"]["subgoal"]["latent_subgoal"].tolist() == [[1, 1]]


def test_a_planner_with_classes_gives_the_actor_one_hot_latents():
    prior = {"use_categorical": True, "categorical_dim": 3}
    algo = make(
        planner={"vae": {"latent_dim": 2, "prior": prior}}, latent_subgoal={"enabled": True}
    )
    assert algo.actor.goal_shapes == {"latent_subgoal": (6,)}
    algo.train_on_batch(algo.process_batch_for_training(raw(4)), 1)


def test_each_part_sees_its_own_and_the_planner_the_task_s_goal():
    observation = {
        "planner": {"modalities": {"goal": {"low_dim": ["task"]}}},
        "actor": {"modalities": {"obs": {"low_dim": ["x", "wrist"]}}},
    }
    words = {"algo": {"actor": {"rnn": {"enabled": False}}}, "observation": observation}
    changes = ("train.goal_mode=last", "train.seq_length=1")
    config = tiny_config("hbc", *changes, obs={"x": 1}, **words)
    algo = algo_factory("hbc", config, {**SHAPES, "wrist": (3,)}, 1)
    assert set(algo.obs_shapes) == {"x", "wrist"}
    assert set(algo.goal_shapes) == {"task"}
    assert config.use_goals
    assert config.all_obs_keys == ("task", "wrist", "x")
    assert set(algo.planner.obs_shapes) == {"x"}
    batch = {**raw(4), "goal_obs": {"task": torch.ones(4, 2)}}
    batch["obs"]["wrist"] = torch.zeros(4, 1, 3)
    ready = algo.process_batch_for_training(batch)
    assert set(ready["planner"]["obs"]) == {"x"}
    assert set(ready["planner"]["goal_obs"]) == {"task"}
    algo.train_on_batch(ready, 1)
    algo.set_eval()
    obs = {"x": torch.zeros(4, 1), "wrist": torch.zeros(4, 3)}
    assert algo.get_action(obs, {"task": torch.ones(4, 2)}).shape == (4, 1)


def test_frames_are_stacked_for_both_parts():
    algo = make(train={"frame_stack": 2})
    batch = raw(4, steps=2)
    batch["obs"]["x"] = torch.arange(8.0).view(4, 2, 1)
    ready = algo.process_batch_for_training(batch)
    assert ready["planner"]["obs"]["x"][1, :, 0].tolist() == [2.0, 3.0]
    algo.train_on_batch(ready, 1)
    algo.set_eval()
    seen = []
    plan = algo._plan
    algo._plan = lambda obs, *rest: seen.append(obs["x"]) or plan(obs, *rest)
    state = algo.initial_state(1)
    for value in (1.0, 2.0):
        state = algo.cut_plan(state)  # a new subgoal at each step
        state = algo.act({"x": torch.tensor([[value]])}, state).state
    assert [x[0, :, 0].tolist() for x in seen] == [[1.0, 1.0], [1.0, 2.0]]


def test_each_part_has_its_optimizer_and_its_average():
    algo = learn(make(actor={"ema": {"enabled": True}}), 3)
    assert set(algo.optimizers) == {"planner/goal_network", "actor/policy"}
    averaged = algo.actor.ema.module["policy"].mlp.layers[0].weight
    assert algo.active_nets["actor"]["policy"].mlp.layers[0].weight is averaged
    assert algo.serialize()["emas"].keys() == {"actor"}


def test_a_policy_tells_its_subgoal_in_the_units_of_the_data():
    algo = make()
    algo.preprocess.set_obs_normalization("x", torch.tensor([10.0]), torch.tensor([2.0]))
    algo.planner.sample_subgoals = lambda obs, *_: {"x": torch.full((len(obs["x"]), 1, 1), 3.0)}
    policy = RolloutPolicy(algo)
    assert policy.subgoal() == {}
    policy({"x": torch.zeros(1).numpy()})
    assert policy.subgoal()["x"].tolist() == [[16.0]]
    latent = RolloutPolicy(make(latent_subgoal={"enabled": True}))
    latent({"x": torch.zeros(1).numpy()})
    assert latent.subgoal() == {}


def test_both_losses_are_logged():
    algo = make()
    log = algo.log_info(algo.train_on_batch(algo.process_batch_for_training(raw(4)), 1))
    assert log["Loss"] == pytest.approx(log["Planner/Loss"] + log["Actor/Loss"])
    assert log["Optimizer/planner/goal_network_lr"] == 1e-4
    assert {"Planner/KL_Loss", "Actor/Policy_Grad_Norms"} <= set(log)
