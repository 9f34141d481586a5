"""TD-MPC2: numbers of its parts worked out by hand, masked windows, plans, and what it learns from a file."""

import math
from types import SimpleNamespace

import pytest
import torch

from imitate.algo.tdmpc2 import Spread, discount_of
from imitate.errors import DatasetError
from imitate.functional.sampling import RowGenerator
from imitate.models.latent import SimNorm, symexp, symlog
from imitate.policy.rollout_policy import RolloutPolicy
from tests.tiny import tiny_algo, tiny_batch

PLANNER = {"horizon": 2, "population": 64, "elites": 8, "iterations": 3}
SIZES = {"latent_dim": 8, "simplex_dim": 4, "policy_plans": 4, "discount": 0.5}


def make(obs=None, action=1, hidden=(8,), **algo):
    planner = {**PLANNER, **algo.pop("planner", {})}
    words = {"algo": {**SIZES, "planner": planner, **algo}, "train": {"online": {"enabled": False}}}
    made = tiny_algo("tdmpc2", obs=obs or {"s": 1}, action=action, hidden=hidden, **words)
    made.set_eval()
    return made


def windows(algo, **following):
    """A prepared batch of two windows of two steps: states 0, 1, 2, actions 0.5, rewards 1."""
    states = torch.tensor([[[0.0]], [[0.0]]])
    after = torch.tensor([[[1.0], [2.0]]] * 2)
    steps = {
        "obs": {"s": after},
        "actions": torch.full((2, 2, 1), 0.5),
        "rewards": torch.ones(2, 2),
        "ends": torch.zeros(2, 2),
        "mask": torch.ones(2, 2, dtype=torch.bool),
        **following,
    }
    raw = {"obs": {"s": states}, "actions": torch.full((2, 1, 1), 0.5), "following": steps}
    return algo.process_batch_for_training({**raw, "index": torch.arange(2)})


def losses(algo, batch):
    torch.manual_seed(0)
    return {k: v.item() for k, v in algo.train_on_batch(batch, 1, validate=True).items()}


def test_symlog_and_its_inverse():
    numbers = torch.tensor([0.0, math.e - 1, -(math.e**2 - 1)])
    torch.testing.assert_close(symlog(numbers), torch.tensor([0.0, 1.0, -2.0]))
    torch.testing.assert_close(symexp(symlog(numbers)), numbers)


def test_two_hot_divides_a_number_between_its_neighbours_and_stops_at_both_limits():
    """Five atoms -2 ... 2. 0.25 of symlog units is a quarter of the way from 0 to 1; a million is beyond the last."""
    model = make(critic={"num_atoms": 5, "limits": [-2, 2]}).model
    numbers = torch.tensor([symexp(torch.tensor(0.25)).item(), 1e6, -1e6, math.e - 1])
    expected = [[0, 0, 0.75, 0.25, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0], [0, 0, 0, 1, 0]]
    torch.testing.assert_close(model.atoms.two_hot(numbers), torch.tensor(expected).float())
    top = torch.tensor([[-50.0, -50.0, -50.0, -50.0, 50.0]])
    assert model.atoms.mean(top).item() == pytest.approx(math.e**2 - 1, rel=1e-5)


def test_simnorm_is_a_softmax_in_each_group():
    x = torch.tensor([[0.0, math.log(3.0), 5.0, 5.0]])
    torch.testing.assert_close(SimNorm(2)(x), torch.tensor([[0.25, 0.75, 0.5, 0.5]]))


def test_the_scale_follows_percentiles_and_is_at_least_one():
    spread = Spread()
    assert spread.after(torch.linspace(0, 100, 101)).item() == pytest.approx(1 + 0.01 * 89)
    assert spread.after(torch.zeros(10)).item() == 1.0 == spread.value.item()


@pytest.mark.parametrize(("steps", "discount"), [(50, 0.95), (200, 0.975), (10_000, 0.995)])
def test_the_discount_follows_from_the_length_of_episodes(steps, discount):
    assert discount_of(steps) == pytest.approx(discount)
    assert make(discount=None).config.values_from_horizon(steps) == {"discount": discount_of(steps)}


def fixed(algo, *, reward=0.0, values=(0.0,) * 5, targets=None):
    """Let rewards and the members' values be constants: the logits of the atoms around them."""
    model = algo.model

    def set_logits(bias, numbers):
        bias.data = (model.atoms.two_hot(torch.tensor(numbers)) + 1e-30).log()

    for layer in (
        model.reward[-1],
        *[c.layers[-1] for c in (model.critics, algo.nets["critic_target"])],
    ):
        torch.nn.init.zeros_(layer.weight)
    set_logits(model.reward[-1].bias, reward)
    set_logits(model.critics.layers[-1].bias, list(values))
    set_logits(algo.nets["critic_target"].layers[-1].bias, list(targets or values))


def test_targets_are_the_least_of_two_critics_and_end_with_the_task():
    algo = make(critic={"n": 2})
    fixed(algo, values=(9.0, 9.0), targets=(4.0, 2.0))
    after = torch.zeros(1, 2, 8)
    target = algo.td_targets(after, None, torch.ones(1, 2), torch.tensor([[0.0, 1.0]]))
    torch.testing.assert_close(target, torch.tensor([[1 + 0.5 * 2.0, 1.0]]), rtol=1e-4, atol=0)


def test_losses_by_hand():
    """A model that is uniform over 101 atoms has a cross-entropy of log 101; step weights 1 and 0.5, mean 0.75."""
    algo = make(ends=True)
    info = losses(algo, windows(algo))
    assert info["Reward_Loss"] == pytest.approx(0.75 * math.log(101), rel=1e-4)
    assert info["Value_Loss"] == pytest.approx(0.75 * math.log(101), rel=1e-4)
    total = 20 * info["Consistency_Loss"] + 0.1 * (info["Reward_Loss"] + info["Value_Loss"])
    assert info["Model_Loss"] == pytest.approx(total + info["Ends_Loss"], rel=1e-5)
    assert info["Q_Targets"] == 1.0  # all values begin at 0
    assert info["Loss"] == pytest.approx(info["Model_Loss"] + info["Policy_Loss"], rel=1e-5)


def test_steps_after_the_end_of_an_episode_count_for_nothing():
    algo = make(ends=True, weights={"cloning": 1.0})
    mask = torch.tensor([[True, True], [False, False]])
    ends = torch.tensor([[0.0, 0.0], [1.0, 0.0]])

    def info_with(value):
        obs = {"s": torch.tensor([[[1.0], [2.0]], [[value], [value]]])}
        rewards = torch.tensor([[1.0, 1.0], [1.0, value]])
        return losses(algo, windows(algo, mask=mask, ends=ends, obs=obs, rewards=rewards))

    one, other = info_with(3.0), info_with(-7.0)
    changing = {"Q_Targets"}  # of the last, masked step
    assert {k for k in one if one[k] != pytest.approx(other[k], rel=1e-6)} <= changing
    # the reward of the last step counts, although the state after it is unknown: 1 + 1/2 + 1 of 4 steps
    assert one["Reward_Loss"] == pytest.approx((1 + 0.5 + 1) / 4 * math.log(101), rel=1e-4)


def test_the_policys_loss_by_hand(monkeypatch):
    """Values 3 of all critics, scale 1 (their spread is 0), no noise: -3 (1 + 1/2 + 1/4) / 3 without entropy."""
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    algo = make(weights={"entropy": 0.1}, action=2)
    for net in (algo.nets["policy"], algo.model.encoder, algo.model.dynamics):
        for weight in net.parameters():
            torch.nn.init.zeros_(weight)
    fixed(algo, values=(3.0,) * 5)
    algo.keeps_errors = True
    info = losses(algo, windows(algo, actions=torch.full((2, 2, 2), 0.5)))
    assert info["Consistency_Loss"] == 0.0  # all latent states are alike
    # log std is -10 + 6 (tanh 0 + 1) = -4; the entropy of both dimensions, times 2, is in the mean
    entropy = 2 * (-4 + 0.5 * math.log(2 * math.pi))
    assert info["Entropy"] == pytest.approx(entropy, rel=1e-5)
    assert info["Policy_Loss"] == pytest.approx(-(3 + 0.1 * 2 * entropy) * 1.75 / 3, rel=1e-4)
    # TD targets are 1 + 0.5 * 3
    torch.testing.assert_close(algo.sample_errors, torch.full((2,), 0.5), rtol=0, atol=1e-3)


def test_demonstrations_alone_are_cloned():
    algo = make(weights={"cloning": 10.0, "entropy": 0.0})
    for layer in algo.nets["policy"]:
        for weight in layer.parameters():
            torch.nn.init.zeros_(weight)
    algo.nets["policy"][-1].bias.data = torch.tensor([math.atanh(0.25), -20.0])  # hardly any noise
    batch = windows(algo)
    assert batch["experience"]["part"].tolist() == [1, 1]
    # (0.25 - 0.5)^2 at steps 0 and 1, weights 1 and 1/2, of the three latent states of a window
    info = losses(algo, batch)
    assert info["Cloning_Loss"] == pytest.approx(0.0625 * 1.5 / 3, rel=1e-2)
    assert info["Policy_Loss"] == pytest.approx(10 * info["Cloning_Loss"], rel=1e-4)  # values are 0
    assert info["Action_Error"] == pytest.approx(0.25, rel=1e-3)
    batch["experience"]["part"] = torch.tensor([0, 1])
    assert losses(algo, batch)["Cloning_Loss"] == pytest.approx(0.0625 * 1.5 / 6, rel=1e-2)


def test_gradients_reach_each_network_from_its_own_loss_only():
    algo = make()
    batch = windows(algo)
    loss, _, zs = algo.model_loss(batch)
    policy, _, _ = algo.policy_loss(batch, zs)
    weights = {name: w for name, w in algo.nets.named_parameters() if w.requires_grad}
    of_model = torch.autograd.grad(
        loss, list(weights.values()), allow_unused=True, retain_graph=True
    )
    reached = {
        name.split(".")[0] for name, g in zip(weights, of_model, strict=True) if g is not None
    }
    assert reached == {"model"}
    encoder = [w for name, w in weights.items() if name.startswith("model.encoder")]
    assert all(g is None for g in torch.autograd.grad(policy, encoder, allow_unused=True))


def test_the_encoder_learns_at_a_third_of_the_rate():
    rates = [group["lr"] for group in make().optimizers["model"].param_groups]
    assert rates == pytest.approx([3e-4, 0.9e-4])


def test_the_score_adds_discounted_rewards_and_the_value_at_the_end():
    algo = make(critic={"n": 2}, ends=True)
    fixed(algo, reward=1.0, values=(4.0, 8.0))
    z, plans = torch.zeros(2, 8), torch.zeros(2, 3, 2, 1)
    algo.model.ends[-1].bias.data.fill_(-1.0)
    score = algo.score(z, None, None, plans)
    torch.testing.assert_close(score, torch.full((2, 3), 1 + 0.5 + 0.25 * 6), rtol=1e-4, atol=0)
    algo.model.ends[-1].bias.data.fill_(1.0)  # every step is the last one
    torch.testing.assert_close(
        algo.score(z, None, None, plans), torch.ones(2, 3), rtol=1e-4, atol=0
    )


def test_problems_of_a_batch_do_not_influence_each_other():
    """With a random stream for each row, an action is the same alone and in a batch."""
    algo = make(obs={"s": 2})
    for layer in (algo.model.reward[-1], algo.model.critics.layers[-1]):
        torch.nn.init.normal_(layer.weight)
    obs = {"s": torch.tensor([[0.1, 0.2], [3.0, -1.0], [0.5, 0.5]])}

    def actions(rows):
        seeds = torch.tensor([11, 22, 33])[rows]
        one = {"s": obs["s"][rows]}
        state = algo.initial_state(len(seeds))
        for _ in range(2):
            action, state, _ = algo.act(one, state, explore=True, generator=RowGenerator(seeds))
        return action

    together = actions([0, 1, 2])
    for row in range(3):
        torch.testing.assert_close(actions([row]), together[row : row + 1], rtol=0, atol=1e-5)


def test_the_policys_plans_are_followed_where_they_are_the_best():
    """Only the policy's own action, 0.7, has a value; the search alone would hardly find it."""
    algo = make(planner={"population": 12, "elites": 1, "iterations": 1})
    seen = []

    def score(plans):
        seen.append(plans)
        return -(plans - 0.7).abs().sum((-1, -2))

    algo.score = lambda z, task, generator, plans: score(plans)
    for layer in algo.nets["policy"]:
        for weight in layer.parameters():
            torch.nn.init.zeros_(weight)
    algo.nets["policy"][-1].bias.data = torch.tensor([math.atanh(0.7), -20.0])
    torch.manual_seed(0)
    action = algo.act({"s": torch.zeros(3, 1)}, algo.initial_state(3)).action
    torch.testing.assert_close(action, torch.full((3, 1), 0.7), atol=1e-3, rtol=0)
    assert seen[0].shape == (3, 12, 2, 1)  # of the 12 candidates, 4 are the policy's
    torch.testing.assert_close(seen[0][:, :4], torch.full((3, 4, 2, 1), 0.7), atol=1e-3, rtol=0)


def test_the_search_begins_near_the_policy_and_less_and_less():
    algo = make(near={"share": 0.8, "until": 0.5})
    assert algo.model.near.item() == pytest.approx(0.8)
    batch = algo.process_batch_for_training(tiny_batch(algo))
    found = []
    for _ in range(20):  # of 30 updates in all
        info = algo.train_on_batch(batch, 1)
        assert info["Loss"].item() == pytest.approx(
            (info["Model_Loss"] + info["Policy_Loss"]).item()
        )
        found.append(algo.model.near.item())
    assert found[2] == pytest.approx(0.8 * (1 - 3 / 15)) and found[14:] == [0.0] * 6
    constant = make(near={"share": 0.8, "until": None})
    constant.train_on_batch(batch, 1)
    assert constant.model.near.item() == pytest.approx(0.8)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_evaluations_may_search_near_the_policy_where_rollouts_do_not(share):
    """The policy's plans are 0.7, and a standard deviation of 0 becomes 0.05; else candidates are within -1 and 1."""
    near = {"share": share, "until": None, "evaluation": 1.0}
    algo = make(planner={"population": 200, "iterations": 1}, near=near)
    seen = []
    algo.score = lambda z, task, generator, plans: seen.append(plans) or plans.sum((2, 3))
    for layer in algo.nets["policy"]:
        for weight in layer.parameters():
            torch.nn.init.zeros_(weight)
    algo.nets["policy"][-1].bias.data = torch.tensor([math.atanh(0.7), -20.0])
    for explore in (False, True):
        algo.act({"s": torch.zeros(1, 1)}, algo.initial_state(1), explore=explore)
    close, wide = ((plans[:, 4:] - 0.7).abs() for plans in seen)
    assert close.max() < 0.3 and close.mean() == pytest.approx(0.05 * 0.798, rel=0.2)
    assert wide.mean() > 0.5


def test_updates_before_the_first_episode_keep_the_search_near_the_policy():
    online = {"enabled": True, "pretrain_updates": 10, "update_ratio": 1.0}
    section = {**SIZES, "planner": PLANNER, "near": {"share": 0.8, "until": 0.5}}
    algo = tiny_algo("tdmpc2", obs={"s": 1}, algo=section, train={"online": online})
    found = []
    for updates in (4, 10, 13, 25, 99):  # of 30 after the ten
        algo.counters["updates"] = updates
        found.append(algo.near_share())
    assert found == pytest.approx([0.8, 0.8, 0.8 * (1 - 3 / 15), 0.0, 0.0])


def test_without_planning_the_policy_acts():
    algo = make(plan=False)
    obs = {"s": torch.tensor([[0.3]])}
    z = algo.model.encoder(obs, None, None)
    mean, log_std = algo.policy(z, None)
    torch.testing.assert_close(algo.act(obs, algo.initial_state(1)).action, mean.tanh())
    torch.manual_seed(1)
    drawn = algo.act(obs, algo.initial_state(1), explore=True).action
    torch.manual_seed(1)
    torch.testing.assert_close(drawn, (mean + torch.randn(1, 1) * log_std.exp()).tanh())
    assert algo.cut_plan(algo.initial_state(1)) == {"policy": {}}


def test_all_networks_see_the_task():
    algo = make(obs={"s": 1, "task": 2}, task="task", task_dim=3, ends=True)
    assert algo.model.encoder.obs.output_dim == 1  # without the task, whose embedding follows
    algo.model.task.weight.data = torch.tensor([[3.0, 0.3], [4.0, 0.4], [0.0, 0.0]])
    embedded = algo.model.embedded(torch.eye(2))
    torch.testing.assert_close(embedded, torch.tensor([[0.6, 0.8, 0.0], [0.3, 0.4, 0.0]]))
    batch = algo.process_batch_for_training(tiny_batch(algo))
    info = algo.train_on_batch(batch, 1)
    assert torch.isfinite(info["Loss"]) and algo.model.task.weight.grad.abs().sum() > 0
    first = {"s": torch.zeros(1, 1), "task": torch.tensor([[1.0, 0.0]])}
    other = {**first, "task": torch.tensor([[0.0, 1.0]])}
    states = [algo.model.encoder(obs, None, algo.task_of(obs)) for obs in (first, other)]
    assert not torch.equal(*states)


@pytest.mark.parametrize("words", [{"train": {"frame_stack": 2}}, {"goal": ["s"]}])
def test_images_frames_and_goals(words):
    obs = {"s": 2, "camera_image": (3, 48, 48)}
    planner = {**PLANNER, "population": 8, "elites": 2}
    encoder = {"core_class": "VisualCore", "core_kwargs": {"backbone_class": "ShallowConv"}}
    observation = {"encoder": {"rgb": {**encoder, "obs_randomizer_class": None}}}
    section = {"algo": {**SIZES, "planner": planner}, "observation": observation}
    algo = tiny_algo("tdmpc2", obs=obs, hidden=(8,), **section, **words)
    weight = torch.rand(3, algo.frame_stack)
    batch = algo.process_batch_for_training(tiny_batch(algo, size=3, weight=weight))
    torch.testing.assert_close(batch["weight"], weight[:, -1:])  # of the sample's own step
    before = [p.detach().clone() for p in algo.model.encoder.obs.parameters()]
    assert torch.isfinite(algo.train_on_batch(batch, 1)["Loss"])
    after = list(algo.model.encoder.obs.parameters())
    assert any(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    frames = algo.frame_stack
    seen = {key: value[:, :frames] for key, value in tiny_batch(algo, size=2)["obs"].items()}
    shown = algo.preprocess.prepare_obs({key: value[:, -1] for key, value in seen.items()})
    goal = {"s": torch.zeros(2, 2)} if "goal" in words else None
    assert algo.act(shown, algo.initial_state(2), goal).action.shape == (2, 1)


def test_batches_without_windows_are_refused():
    algo = make()
    raw = {key: value for key, value in tiny_batch(algo).items() if key != "following"}
    with pytest.raises(DatasetError, match="tdmpc2 learns from windows with rewards and ends"):
        algo.process_batch_for_training(raw)


def road(size=64, seed=0):
    """Windows of random steps on a road: ``s' = s + 0.5 a``, rewarded by ``-s'^2``, which ends nowhere."""
    generator = torch.Generator().manual_seed(seed)
    state = torch.rand(size, 1, 1, generator=generator) * 4 - 2
    actions = torch.rand(size, 2, 1, generator=generator) * 2 - 1
    after = state + 0.5 * actions.cumsum(1)
    return SimpleNamespace(
        raw={
            "obs": {"s": state},
            "actions": actions[:, :1],
            "index": torch.arange(size),
            "following": {
                "obs": {"s": after},
                "actions": actions,
                "rewards": -after.squeeze(-1).square(),
                "ends": torch.zeros(size, 2),
                "mask": torch.ones(size, 2, dtype=torch.bool),
            },
        }
    )


@pytest.mark.slow("120 updates of a latent model")
def test_it_learns_a_task_from_random_steps():
    """Cloning the same steps would stay where it is: their mean action is 0."""
    algo = tiny_algo(
        "tdmpc2",
        obs={"s": 1},
        hidden=(32,),
        algo={
            **SIZES,
            "planner": PLANNER,
            "latent_dim": 16,
            "optim_params": {
                name: {"learning_rate": {"initial": 0.003}} for name in ("model", "policy")
            },
        },
    )
    algo.set_train()
    torch.manual_seed(0)
    batch = algo.process_batch_for_training(road().raw)
    for _ in range(120):
        algo.train_on_batch(batch, 1)
    algo.set_eval()
    policy = RolloutPolicy(algo)
    for start in (-1.8, 1.8):
        policy.start_episode()
        place = start
        for _ in range(8):
            place += 0.5 * float(policy({"s": [place]})[0])
        assert abs(place) < 0.4
