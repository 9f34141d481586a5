"""The value chooses among sampled subgoals, by the online critics; better than cloning where most data are bad."""

import torch

from imitate import algo_factory, load_config

LOW = {"low_dim": ["s"]}
OBSERVED = {"modalities": {"obs": LOW}}
PLANNER = {"modalities": {"obs": LOW, "subgoal": LOW}}
SHAPES = {"s": (1,)}


def rate(name, value):
    return {"optim_params": {name: {"learning_rate": {"initial": value}}}}


def tree(observation=None, train=None, value=None, planner=None, num_samples=20, **section):
    return {
        "algo_name": "iris",
        "experiment": {"epoch_every_n_steps": 10},
        "train": {"num_epochs": 10, "seq_length": 1, **(train or {})},
        "algo": {
            "value_planner": {
                "num_samples": num_samples,
                "planner": planner
                or {
                    "vae": {"latent_dim": 2, "kl_weight": 0.02},
                    **rate("goal_network", 0.01),
                },
                "value": value
                or {
                    "critic": {"layer_dims": [32], "num_action_samples_rollout": 5},
                    "action_sampler": {
                        "vae": {"encoder_layer_dims": [32], "decoder_layer_dims": [32]}
                    },
                },
            },
            "actor": {
                "rnn": {"enabled": False},
                "actor_layer_dims": [32],
                **rate("policy", 0.01),
            },
            **section,
        },
        "observation": observation
        or {"value_planner": {"planner": PLANNER, "value": OBSERVED}, "actor": OBSERVED},
    }


def make(seed=0, **kwargs):
    torch.manual_seed(seed)
    return algo_factory("iris", load_config(tree(**kwargs)), SHAPES, 1)


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
    obs = {"s": torch.zeros(4, 1)}
    worlds.set_critic(algo.value.nets["critic"], (1, 0), (1, 0))
    assert algo._plan(obs, None)["s"].tolist() == [[2.0]] * 4
    worlds.set_critic(algo.value.nets["critic"], (-1, 0), (-1, 0))
    assert algo._plan(obs, None)["s"].tolist() == [[-1.0]] * 4


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


def learn(algo, steps=200):
    algo.set_train()
    for step in range(steps):
        algo.train_on_batch(algo.process_batch_for_training(mixed(seed=step)), 1)
    algo.set_eval()
    return algo


def act(algo, rows=40):
    torch.manual_seed(0)
    with torch.no_grad():
        return algo.act({"s": torch.zeros(rows, 1)}, algo.initial_state(rows)).action[:, 0]


def test_it_goes_where_a_fifth_of_the_data_earned_something_and_cloning_does_not():
    iris = act(learn(make()))
    assert float((iris > 0.2).float().mean()) >= 0.95
    for name in ("bc", "hbc"):
        config = tree()
        planner, actor = config["algo"]["value_planner"]["planner"], config["algo"]["actor"]
        parts = {"planner": PLANNER, "actor": OBSERVED}
        config["algo_name"] = name
        config["algo"] = {"planner": planner, "actor": actor} if name == "hbc" else actor
        config["observation"] = parts if name == "hbc" else OBSERVED
        torch.manual_seed(0)
        actions = act(learn(algo_factory(name, load_config(config), SHAPES, 1)))
        assert float((actions > 0.2).float().mean()) < 0.5, name
        assert float(actions.mean()) < -0.1, name


def test_in_cascade_the_actor_learns_with_the_best_subgoals(worlds):
    algo = linear(mode="cascade", num_samples=3)
    candidates(algo, -1.0, 2.0, 0.5)
    worlds.set_critic(algo.value.nets["critic"], (1, 0), (1, 0))
    ready = algo.process_batch_for_training(mixed(8))
    assert algo._goals_of_actor(ready)["s"].tolist() == [[2.0]] * 8
