"""MuZero: its targets worked out by hand, masked steps, and a delayed reward that a search finds, from data alone."""

import math

import numpy as np
import pytest
import torch

from imitate.algo import muzero
from imitate.algo.muzero import ModelTree, after_ends, halved, n_step_values
from imitate.errors import ConfigError, DatasetError
from imitate.functional.sampling import draw_dirichlet
from tests.refusals import refused
from tests.tiny import tiny_algo, tiny_batch

SIZES = {"latent_dim": 8, "simplex_dim": 4, "unroll_steps": 1, "n_step": 2, "discount": 0.5}
SEARCH = {"search": {"simulations": 8, "candidates": 4}, "target_simulations": 4}


def make(action=2, choices=2, obs=None, hidden=(16,), **algo):
    words = {"algo": {**SIZES, **SEARCH, "num_choices": choices, **algo}}
    offline = {"online": {"enabled": False}}
    return tiny_algo(
        "muzero", obs=obs or {"s": 1}, action=action, hidden=hidden, train=offline, **words
    )


def row(*numbers):
    return torch.tensor([numbers], dtype=torch.float32)


@pytest.mark.parametrize(
    ("ends", "mask", "expected"),
    [
        ((0, 0, 0), (1, 1, 1), (1 + 0.5 * 2 + 0.25 * 30, 2 + 0.5 * 4 + 0.25 * 40)),
        # the second step is a terminal: nothing follows it
        ((0, 1, 0), (1, 0, 0), (1 + 0.5 * 2, 2)),
        ((0, 1, 0), (1, 1, 0), (1 + 0.5 * 2, 2)),
        # the state after the second step is unknown: the value of the one before counts, and not that step's reward
        ((0, 0, 0), (1, 0, 0), (1 + 0.5 * 20, 20)),
    ],
)
def test_values_of_n_steps_by_hand(ends, mask, expected):
    rewards, values = row(1, 2, 4), row(10, 20, 30, 40)
    found = n_step_values(rewards, row(*ends), row(*mask), values, 2, 0.5)
    torch.testing.assert_close(found, row(*expected))


def test_losses_of_a_window_by_hand():
    """Heads of zeros: 101 equally likely atoms, two equally likely choices; at both states or for the one step."""
    algo = make(weights={"entropy": 0.5})
    algo.set_eval()
    model, batch = algo.model, chain(algo, size=4)
    torch.nn.init.zeros_(model.policy[-1].weight)
    info = algo.train_on_batch(batch, 1, validate=True)
    window = batch["experience"]["window"]
    with torch.no_grad():
        before, after = (model.encoded({"s": window["obs"]["s"][:, k]}, None) for k in (0, 1))
        z = model.dynamics(torch.cat([before, window["actions"][:, 0]], -1))
        ends = torch.nn.functional.softplus(model.ends(z)).mean()  # the first step ends nothing
        near = torch.nn.functional.cosine_similarity(
            model.prediction(model.projection(z)), model.projection(after)
        ).mean()
    atoms, choices = math.log(101), math.log(2)
    parts = {"Value": 2 * atoms, "Reward": atoms, "Policy": 2 * choices, "Entropy": -2 * choices}
    parts |= {"Ends": ends.item(), "Consistency": -near.item()}
    assert {name: info[f"{name}_Loss"].item() for name in parts} == pytest.approx(parts, rel=1e-4)
    weights = {"Value": 0.25, "Reward": 1, "Policy": 1, "Entropy": 0.5, "Ends": 1, "Consistency": 2}
    total = sum(weight * parts[name] for name, weight in weights.items())
    assert info["Loss"].item() == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize(("end", "discount"), [(-1.0, 0.5), (0.0, 0.5), (1.0, 0.0)])
def test_an_edge_of_the_models_tree_by_hand(end, discount):
    """Reward 2, value 3, probabilities 3/4 and 1/4 in every state; the episode ends, or goes on."""
    algo = make()
    model, z = algo.model, torch.full((1, 8), 0.25)
    biases = {
        model.reward: (model.atoms.two_hot(torch.tensor(2.0)) + 1e-30).log(),
        model.value: (model.atoms.two_hot(torch.tensor(3.0)) + 1e-30).log(),
        model.policy: torch.tensor([math.log(3.0), 0.0]),
        model.ends: torch.tensor([end]),
    }
    for head, bias in biases.items():
        torch.nn.init.zeros_(head[-1].weight)
        head[-1].bias.data = bias
    tree = ModelTree(model, algo.config, 2, z, 1, None)
    with torch.no_grad():
        leaves = tree.root(z), tree(1, np.array([0]), np.array([1]))
        after = model.dynamics(torch.cat([z, row(0, 1)], -1))
    for leaf, reward, factor in zip(leaves, (0.0, 2.0), (1.0, discount), strict=True):
        found = [*leaf.priors[0], *leaf.values, *leaf.rewards, *leaf.discounts]
        assert found == pytest.approx([0.75, 0.25, 3.0, reward, factor], rel=1e-3)
    torch.testing.assert_close(tree.states[1], after)


def test_states_after_an_end_are_absorbing():
    """The first of three steps ends the episode; its state is known in a replay buffer, but not in a file.

    Values, rewards and policies of zero heads cost log 101, log 101 and log 2: at step 0 with the weight 1, later with
    1/3. There is no policy after the end, no reward or value but 0, whatever the networks of the targets say.
    """
    algo = make(unroll_steps=3)
    algo.set_eval()
    torch.nn.init.zeros_(algo.model.policy[-1].weight)
    atoms, choices = math.log(101), math.log(2)
    two, algo.keeps_errors = algo.model.atoms.two_hot(torch.tensor(2.0)), True
    nothing, window = torch.zeros(4, 5), {"ends": row(1, 0, 0, 0, 0).expand(4, 5)}
    window |= {"obs": {"s": torch.zeros(4, 5, 1)}, "actions": torch.zeros(4, 5, 2)}
    for seen in (True, False):
        mask = torch.tensor([[seen, False, False, False, False]]).expand(4, 5)
        following = {**window, "rewards": nothing + 5.0, "mask": mask}
        batch = tiny_batch(algo, size=4, actions=torch.zeros(4, 1, 2), following=following)
        batch = algo.process_batch_for_training(batch)
        algo.nets["target"].value[-1].bias.data[-1] = 50.0  # 1,096 everywhere
        returns = algo.targets_of(batch["experience"]["window"], None)[0]
        torch.testing.assert_close(returns, row(5, 0, 0, 0).expand(4, 4))
        info = algo.train_on_batch(batch, 1, validate=True)
        assert info["Value_Loss"].item() == pytest.approx(2 * atoms, rel=1e-4)
        assert info["Reward_Loss"].item() == pytest.approx(atoms, rel=1e-4)
        assert info["Policy_Loss"].item() == pytest.approx(choices, rel=1e-4)
    algo.model.value[-1].bias.data = (two + 1e-30).log()
    algo.train_on_batch(batch, 1, validate=True)
    assert algo.sample_errors.tolist() == pytest.approx([5.0 - 2.0] * 4, rel=1e-3)


def test_states_after_an_end_by_hand():
    assert after_ends(row(0, 1, 0)).tolist() == [[0, 0, 1, 1]]
    assert after_ends(row(1, 1, 0)).tolist() == [[0, 1, 1, 1]]


def test_half_of_a_gradient_passes():
    x = torch.tensor(3.0, requires_grad=True)
    halved(x).backward()
    assert (halved(x).item(), x.grad.item()) == (3.0, 0.5)


def test_dirichlet_numbers_have_their_moments():
    """Mean 1 / 4; variance (1 / 4)(3 / 4) / (4 alpha + 1)."""
    torch.manual_seed(0)
    drawn = draw_dirichlet(torch.empty(20_000, 4), 0.3)
    torch.testing.assert_close(drawn.sum(1), torch.ones(20_000))
    assert drawn.mean(0).tolist() == pytest.approx([0.25] * 4, abs=0.01)
    assert drawn.var(0).tolist() == pytest.approx([0.1875 / 2.2] * 4, abs=0.004)


def test_the_policys_loss_by_hand():
    """Logits log 3 and 0 are the probabilities 3/4 and 1/4; a Gaussian of mean 1/4 and log std -1.5 = -4 + 2.5."""
    algo = make()
    for of in (algo, numbers := make(1, 0)):
        torch.nn.init.zeros_(of.model.policy[-1].weight)
    algo.model.policy[-1].bias.data = torch.tensor([math.log(3.0), 0.0])
    loss, entropy = algo.policy_loss(torch.zeros(1, 8), row(0.5, 0.5), None)
    expected = -0.5 * math.log(0.75) - 0.5 * math.log(0.25)
    torch.testing.assert_close(loss, torch.tensor([expected]))
    torch.testing.assert_close(
        entropy, torch.tensor([-0.75 * math.log(0.75) - 0.25 * math.log(0.25)])
    )
    points = torch.tensor([[[0.0], [math.tanh(1.0)]]])
    numbers.model.policy[-1].bias.data = torch.tensor([0.25, 0.0])
    loss, entropy = numbers.policy_loss(torch.zeros(1, 8), row(0.25, 0.75), points)
    squares = 0.25 * 0.25**2 + 0.75 * 0.75**2
    torch.testing.assert_close(loss, torch.tensor([0.5 * math.exp(3.0) * squares - 1.5]))
    assert entropy.item() == pytest.approx(-1.5)
    pairs = make(2, 0)
    torch.nn.init.zeros_(pairs.model.policy[-1].weight)
    pairs.model.policy[-1].bias.data = torch.tensor([0.25, -0.5, 0.0, 0.0])
    points = torch.tensor([[[0.0, 0.0], [math.tanh(1.0), 0.0], [0.0, math.tanh(1.0)]]])
    loss, entropy = pairs.policy_loss(torch.zeros(1, 8), row(0.5, 0.25, 0.25), points)
    squares = 0.5 * (0.0625 + 0.25) + 0.25 * (0.5625 + 0.25) + 0.25 * (0.0625 + 2.25)
    assert loss.item() == pytest.approx(0.5 * math.exp(3.0) * squares - 3.0, rel=1e-5)
    assert entropy.item() == pytest.approx(-3.0)


def test_a_quarter_of_the_candidates_is_uniform_and_the_others_are_the_policys(monkeypatch):
    algo = make(1, 0, search={"simulations": 2, "candidates": 8})
    torch.nn.init.zeros_(algo.model.policy[-1].weight)
    algo.model.policy[-1].bias.data = torch.tensor([0.25, 0.0])
    monkeypatch.setattr(muzero, "fill_uniform", lambda x, _: x.fill_(0.75))
    monkeypatch.setattr(muzero, "draw_normal", lambda mean, std, _: mean + 2 * std)
    z = torch.full((1, 8), 0.25)
    tree = ModelTree(algo.model, algo.config, 1, z, 2, None)
    assert len(tree.states) == len(tree.candidates) == 3
    with torch.no_grad():
        leaf = tree.root(z)
    drawn = math.tanh(0.25 + 2 * math.exp(-1.5))
    assert tree.candidates[0].flatten().tolist() == pytest.approx([0.5] * 2 + [drawn] * 6)
    assert leaf.priors.tolist() == [[0.125] * 8]


def test_each_of_three_steps_counts_a_third():
    """Ends of zero heads cost log 2; predictions are compared with the state that follows the step."""
    algo = make(unroll_steps=3)
    algo.set_eval()
    torch.nn.init.zeros_(algo.model.ends[-1].weight)
    torch.manual_seed(0)
    window = {"obs": {"s": torch.randn(4, 5, 1)}, "actions": torch.rand(4, 5, 2)}
    window |= {"ends": torch.zeros(4, 5), "rewards": torch.zeros(4, 5)}
    following = {**window, "mask": torch.ones(4, 5, dtype=torch.bool)}
    batch = tiny_batch(algo, size=4, actions=torch.zeros(4, 1, 2), following=following)
    batch = algo.process_batch_for_training(batch)
    info = algo.train_on_batch(batch, 1, validate=True)
    model, window = algo.model, batch["experience"]["window"]
    with torch.no_grad():
        seen = [model.encoded({"s": window["obs"]["s"][:, k]}, None) for k in range(4)]
        z, near = seen[0], 0.0
        for step in range(3):
            z = model.dynamics(torch.cat([z, window["actions"][:, step]], -1))
            pair = model.prediction(model.projection(z)), model.projection(seen[step + 1])
            near += torch.nn.functional.cosine_similarity(*pair).mean().item() / 3
    assert info["Ends_Loss"].item() == pytest.approx(math.log(2), rel=1e-4)
    assert info["Reward_Loss"].item() == pytest.approx(math.log(101), rel=1e-4)
    assert info["Consistency_Loss"].item() == pytest.approx(-near, rel=1e-4)


def test_the_priors_of_the_root_have_a_share_of_noise(monkeypatch):
    """A quarter of the way from 1/2 and 1/2 to 0.9 and 0.1."""
    algo, roots = make(search={**SEARCH["search"], "noise_share": 0.25}), []
    torch.nn.init.zeros_(algo.model.policy[-1].weight)
    search = muzero.search
    monkeypatch.setattr(
        muzero, "search", lambda root, *more: roots.append(root) or search(root, *more)
    )
    monkeypatch.setattr(muzero, "draw_dirichlet", lambda *_: row(0.9, 0.1))
    for explore in (True, False):
        algo.act({"s": torch.zeros(1, 1)}, algo.initial_state(1), explore=explore)
    found = [root.priors[0].tolist() for root in roots]
    assert found == [pytest.approx([0.6, 0.4]), pytest.approx([0.5, 0.5])]


def chain(algo, size=64, seed=0, continuous=False):
    """Two steps: only the first action counts, and only after the second one is its reward known. Then it ends."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.rand(size, 1, generator=generator) * 2 - 1
    if continuous:
        taken, good = first, 1.0 - (first - 0.5).abs()
    else:
        choice = (first[:, 0] > 0).long()
        taken, good = torch.nn.functional.one_hot(choice, 2).float(), choice.float().unsqueeze(1)
    nothing, width = torch.zeros(size, 1), taken.shape[1]
    following = {
        "obs": {"s": torch.stack([good + 1, nothing, nothing], 1)},
        "actions": torch.cat([taken.unsqueeze(1), torch.zeros(size, 2, width)], 1),
        "rewards": torch.cat([nothing, good, nothing], 1),
        "ends": row(0, 1, 0).expand(size, 3),
        "mask": torch.tensor([[True, False, False]]).expand(size, 3),
    }
    batch = tiny_batch(algo, size=size, actions=taken.unsqueeze(1), following=following)
    return algo.process_batch_for_training({**batch, "obs": {"s": nothing.unsqueeze(1)}})


@pytest.mark.slow("it learns until the search finds it")
@pytest.mark.parametrize("continuous", [False, True])
def test_a_search_finds_an_action_whose_reward_comes_a_step_later(continuous):
    rates = {"optim_params": {"model": {"learning_rate": {"initial": 5e-3}}}, "target_tau": 0.1}
    search = {"search": {"simulations": 24, "candidates": 8}} if continuous else {}
    algo = make(*((1, 0) if continuous else (2, 2)), **rates, **search)
    algo.set_train()
    for number in range(100):
        info = algo.train_on_batch(chain(algo, seed=number, continuous=continuous), 1)
    assert all(value.isfinite() for value in info.values())
    algo.set_eval()
    step = algo.act({"s": torch.zeros(20, 1)}, algo.initial_state(20))
    if continuous:
        assert (
            step.action - 0.5
        ).abs().mean() < 0.4  # 0.63 of random actions; eight seeds: 0.19 - 0.29
    else:
        assert step.action.tolist() == [[0, 1]] * 20
        tried = algo.act({"s": torch.zeros(100, 1)}, algo.initial_state(100), explore=True).action
        assert 0.5 < tried[:, 1].mean() < 1.0


def test_steps_after_the_end_of_an_episode_count_for_nothing():
    algo = make()
    algo.set_eval()

    def losses(value):
        batch = chain(algo)
        for key in ("rewards", "actions"):
            batch["experience"]["window"][key][:, 2] = value
        for seen in batch["experience"]["window"]["obs"].values():
            seen[:, 2:] = value
        torch.manual_seed(0)
        return {k: v.item() for k, v in algo.train_on_batch(batch, 1, validate=True).items()}

    assert losses(0.0) == pytest.approx(losses(5.0), rel=1e-5)


def test_what_cannot_work_is_refused():
    with refused("algo.num_choices is 3, but actions have 2 numbers", error=ConfigError):
        make(2, 3)
    algo = make()
    batch = tiny_batch(algo)
    del batch["following"]
    with refused("learns from windows with rewards and ends", error=DatasetError):
        algo.process_batch_for_training(batch)
