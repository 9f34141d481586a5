"""Q-chunking: the choice among the flow's chunks, each loss by hand, and a choice that single actions cannot make."""

import pytest
import torch


def make(worlds, actor=None, **section):
    """Chunks of two actions; critics (a1 + 2 a2) and (3 a1), targets 10 more; a flow that stays; a policy z / 2."""
    section = {"n_step": 2, "critic": {"layer_norm": False}, "actor": actor or {}, **section}
    algo = worlds.make_algo("qc", section)
    worlds.set_critic(algo.nets["critic"], (0, 1, 2), (0, 3, 0))
    worlds.set_critic(algo.nets["critic_target"], (0, 1, 2, 10), (0, 3, 0, 10))
    worlds.set_net(algo.nets["flow"])
    if "actor" in algo.nets:
        worlds.set_net(algo.nets["actor"], x=0.5)
    return algo


def transitions(worlds, **more):
    """The chunks (1, 0.5), and (-1, 0) of which only the first action was taken before a terminal."""
    chunk, mask = torch.tensor([[1.0, 0.5], [-1.0, -1.0]]), torch.tensor([[1, 1], [1, 0]])
    return worlds.two_transitions(
        **{"chunk": chunk, "chunk_mask": mask.bool(), "valid": torch.ones(2), **more}
    )


def test_the_policy_takes_the_chunk_with_the_largest_mean_value(worlds):
    algo = make(worlds, flow={"num_candidates": 5})
    obs = {"s": torch.zeros(3, 1)}
    made = algo.policy_chunks(obs, None, torch.Generator().manual_seed(0))
    noise = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    best = (2 * noise[..., 0] + noise[..., 1]).argmax(1)  # the mean of both critics
    torch.testing.assert_close(made, noise[torch.arange(3), best])


@pytest.mark.parametrize(("valid", "share"), [((1.0, 1.0), 0.5), ((1.0, 0.0), 0.0)])
def test_targets_are_means_of_target_critics_at_the_policys_chunks(worlds, valid, share):
    algo = make(worlds)
    worlds.set_net(algo.nets["flow"], bias=5.0)  # every chunk ends at (1, 1)
    found = worlds.losses(algo, transitions(worlds, valid=torch.tensor(valid)))
    first = 1 + 0.5 * (13 + 13) / 2
    assert found["Q_Targets"] == pytest.approx((first + 0.5) / 2)
    # critics: 2 and 3 of the first chunk, -3 and -3 of the second
    errors = (2 - first) ** 2 + (3 - first) ** 2, 2 * (-3 - 0.5) ** 2
    wanted = (1 - share) * errors[0] + share * errors[1]
    assert found["Critic_Loss"] == pytest.approx(wanted)


def test_the_error_of_a_validation_counts_actions_that_were_taken(worlds):
    algo = make(worlds)
    worlds.set_net(algo.nets["flow"], bias=5.0)  # every chunk ends at (1, 1)
    info = algo.train_on_batch(transitions(worlds), 1, validate=True)
    assert info["Action_Error"].item() == pytest.approx((0 + 0.5 + 2) / 3)


def test_the_flow_learns_only_actions_that_were_taken(worlds):
    algo = make(worlds)
    worlds.set_net(algo.nets["flow"], x=2.0, time=1.0)
    batch = transitions(worlds)
    torch.manual_seed(0)
    noise, time = torch.randn(2, 2), torch.rand(2, 1)
    torch.manual_seed(0)
    loss, _ = algo._flow_loss(batch)
    x = (1 - time) * noise + time * batch["chunk"]
    errors = (2 * x + time - (batch["chunk"] - noise)).square()
    assert loss.item() == pytest.approx((errors[0].sum() + errors[1, 0]).item() / 3, rel=1e-5)


def test_the_one_step_policy_stays_near_the_flow_and_maximizes_values(worlds):
    algo = make(worlds, actor={"enabled": True, "distill_weight": 10.0})
    batch = transitions(worlds)
    torch.manual_seed(0)
    noise = torch.randn(2, 2)
    torch.manual_seed(0)
    loss, info = algo._actor_loss(batch)
    distance = (0.5 * noise - noise.clamp(-1, 1)).square().mean(-1)
    chunk = (0.5 * noise).clamp(-1, 1)
    wanted = (10 * distance - 2 * chunk[:, 0] - chunk[:, 1]).mean()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    # it acts, and its chunks are those of the targets
    made = algo.policy_chunks(batch["obs"], None, torch.Generator().manual_seed(0))
    drawn = torch.randn(2, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(made, (drawn / 2).clamp(-1, 1))
    worlds.set_net(algo.nets["actor"], bias=5.0)
    first = 1 + 0.5 * 13
    assert worlds.losses(algo, batch)["Q_Targets"] == pytest.approx((first + 0.5) / 2)


def test_whole_chunks_are_executed(worlds):
    algo = make(worlds, flow={"num_steps": 1})
    algo.nets["flow"].last.bias.data = torch.tensor([9.0, -9.0])
    algo.set_eval()
    state, actions = algo.initial_state(1), []
    for _ in range(4):
        step = algo.act({"s": torch.zeros(1, 1)}, state)
        actions.append(step.action.item())
        state = step.state
    assert actions == [1.0, -1.0, 1.0, -1.0]


@pytest.mark.parametrize(
    "actor",
    [{}, pytest.param({"enabled": True, "distill_weight": 0.1}, marks=pytest.mark.nightly)],
    ids=["best", "one step"],
)
def test_it_learns_which_of_two_kinds_of_chunks_is_better(worlds, actor):
    """Half of the chunks are (0.7, 0.7), half (-0.7, -0.7); the first are worth 1. The flow's have the mean 0."""
    section = {"n_step": 2, "actor": actor, "flow": {"num_candidates": 8, "num_steps": 4}}
    algo = worlds.make_algo("qc", section, hidden=(32,))
    for optimizer in algo.optimizers.values():
        optimizer.param_groups[0]["lr"] = 1e-2
    sign = torch.where(torch.arange(256)[:, None] % 2 == 0, 1.0, -1.0).expand(-1, 2)
    noise = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
    state = {"s": torch.ones(256, 1)}
    batch = {
        **{"obs": state, "next_obs": state, "goal_obs": None, "weight": None},
        **{"chunk": 0.7 * sign + 0.05 * noise, "chunk_mask": torch.ones(256, 2).bool()},
        **{"valid": torch.ones(256), "discounts": torch.zeros(256), "rewards": sign[:, 0] / 2},
    }

    def learned():
        made = algo.policy_chunks({"s": torch.ones(50, 1)}, None)
        return made.mean() > 0.4

    assert worlds.learns(algo, batch, 300, learned)
