"""The value chooses among sampled subgoals, by the online critics; better than cloning where most data are bad."""

import torch

from tests.algo.conftest import within
from tests.tiny import tiny_algo


def rate(name, value):
    return {"optim_params": {name: {"learning_rate": {"initial": value}}}}


LAYERS = {"encoder_layer_dims": [64, 64], "decoder_layer_dims": [64, 64]}
PLANNER = {"vae": {"latent_dim": 2, "kl_weight": 0.02, **LAYERS}, **rate("goal_network", 0.01)}
ACTOR = {"rnn": {"enabled": False}, **rate("policy", 0.01)}


def make(train=None, value=None, num_samples=20, **section):
    parts = {"planner": PLANNER, "value": value or {"critic": {"num_action_samples_rollout": 5}}}
    section |= {"value_planner": {"num_samples": num_samples, **parts}, "actor": ACTOR}
    train = {"num_epochs": 10, "seq_length": 1, **(train or {})}
    return tiny_algo("iris", obs={"s": 1}, hidden=[32], algo=section, train=train)


def linear(**kwargs):
    """Its critics have no hidden layers."""
    value = {"critic": {"layer_dims": [], "num_action_samples_rollout": 3}}
    return make(value=value, **kwargs)


def candidates(algo, *places):
    """Let the planner sample these, whatever it sees."""
    rows = torch.tensor(places)[None, :, None]
    algo.planner.sample_subgoals = lambda obs, *_: {"s": rows.expand(len(obs["s"]), -1, -1)}


@torch.no_grad()
def test_the_subgoal_of_the_highest_value_is_taken(worlds):
    algo = linear(num_samples=3)
    candidates(algo, -1.0, 2.0, 0.5)
    for slope, best in ((1, 2.0), (-1, -1.0)):
        worlds.set_critic(algo.value.nets["critic"], (slope, 0), (slope, 0))
        assert algo._plan({"s": torch.zeros(4, 1)}, None)["s"].tolist() == [[best]] * 4


@torch.no_grad()
def test_subgoals_are_valued_by_the_online_critics_and_targets_by_the_target_critics(worlds):
    algo = linear(num_samples=3)
    candidates(algo, -1.0, 2.0, 0.5)
    nets = algo.value.nets
    worlds.set_critic(nets["critic"], (1, 0), (1, 0))
    worlds.set_critic(nets["critic_target"], (-1, 0), (-1, 0))
    assert algo._plan({"s": torch.zeros(1, 1)}, None)["s"].item() == 2.0
    # The first transition earns 1 and goes on to state 4 with discount 0.5; the second earns 0.5 and ends.
    assert algo.value._target(worlds.two_transitions()).tolist() == [1.0 - 0.5 * 4.0, 0.5]


@torch.no_grad()
def test_the_value_of_a_subgoal_is_that_of_the_best_action_there(worlds):
    algo = linear()
    worlds.set_critic(algo.value.nets["critic"], (0, 1), (0, 5))
    actions = torch.tensor([0.3, 0.9, -1.0]).view(1, 3, 1)
    algo.value.sampler.sample = lambda obs, goal, number, generator: actions.expand(
        len(obs["s"]), number, 1
    )
    values = algo._values_of({"s": torch.zeros(2, 4, 1)}, None, 4, None)
    torch.testing.assert_close(values, torch.full((2, 4), 0.9))


@torch.no_grad()
def test_subgoals_are_valued_for_the_goal_of_their_row():
    """The value is the nearness to the goal."""
    algo = linear(num_samples=3)
    algo.set_eval()
    candidates(algo, -1.0, 2.0, 0.5)
    algo.value.goal_shapes = {"s": (1,)}
    algo.value.state_value = lambda states, goal, _: -(states["s"] - goal["s"]).abs()[:, 0]
    goal = {"s": torch.tensor([[1.8], [-3.0], [0.6]])}
    step = algo.act({"s": torch.zeros(3, 1)}, algo.initial_state(3), goal)
    assert step.extras["subgoal/s"].flatten().tolist() == [2.0, -1.0, 0.5]


def mixed(size=256, seed=0):
    """From 0, four of five times to -1, where nothing is earned, else to 1, where 1 is."""
    generator = torch.Generator().manual_seed(seed)
    side = (torch.rand(size, 1, generator=generator) < 0.2).float() * 2.0 - 1.0
    start = torch.arange(size)[:, None] % 2 == 0
    state = torch.where(start, 0.0, side)
    return {
        "obs": {"s": state[:, None]},
        "next_obs": {"s": side[:, None]},
        "subgoals": {"s": side},
        "actions": torch.where(start, 0.5 * side, 0.0)[:, None],
        "n_step_rewards": torch.where(start, 0.0, (side > 0).float())[:, 0],
        "discounts": torch.where(start, 0.9, 0.0)[:, 0],
    }


def update(algo, number):
    algo.set_train()
    algo.train_on_batch(algo.process_batch_for_training(mixed(seed=number)), 1)


def act(algo, rows=40):
    torch.manual_seed(0)
    with torch.no_grad():
        return algo.act({"s": torch.zeros(rows, 1)}, algo.initial_state(rows)).action[:, 0]


def test_it_goes_where_a_fifth_of_the_data_earned_something_and_cloning_does_not():
    iris = make()

    def learned():
        iris.set_eval()
        return float((act(iris) > 0.2).float().mean()) >= 0.95

    assert within(400, lambda number: update(iris, number), learned)
    for name in ("bc", "hbc"):
        section = {"planner": PLANNER, "actor": ACTOR} if name == "hbc" else ACTOR
        words = {"algo": section, "train": {"num_epochs": 10, "seq_length": 1}}
        algo = tiny_algo(name, obs={"s": 1}, hidden=[32], **words)
        for number in range(100):
            update(algo, number)
        algo.set_eval()
        actions = act(algo)
        assert float((actions > 0.2).float().mean()) < 0.5, name
        assert float(actions.mean()) < -0.1, name


def test_in_cascade_the_actor_learns_with_the_best_subgoals(worlds):
    algo = linear(mode="cascade", num_samples=3)
    candidates(algo, -1.0, 2.0, 0.5)
    worlds.set_critic(algo.value.nets["critic"], (1, 0), (1, 0))
    ready = algo.process_batch_for_training(mixed(8))
    assert algo.goals_of_actor(ready)["s"].tolist() == [[2.0]] * 8
