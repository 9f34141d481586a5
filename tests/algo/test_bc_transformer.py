"""Behavior cloning with a transformer."""

import math

import pytest
import torch

from imitate.algo.bc import BC_Transformer, BC_Transformer_GMM
from tests.algo.conftest import losses, within
from tests.tiny import tiny_algo, tiny_batch

W = 4


def make(overrides=(), frame_stack=W, seq_length=1, ac_dim=2, **transformer):
    options = {"enabled": True, "context_length": W, "num_layers": 2, **transformer}
    train = {"frame_stack": frame_stack, "seq_length": seq_length}
    words = {"algo": {"transformer": options}, "train": train}
    return tiny_algo("bc", *overrides, obs={"state": 3}, action=ac_dim, **words)


def make_rotary(**options):
    return make(
        frame_stack=1, seq_length=10, rotary_embedding=True, supervise_all_steps=True, **options
    )


def make_future(overrides=(), **options):
    return make(overrides, seq_length=W, supervise_all_steps=True, pred_future_acs=True, **options)


def predicted(algo, batch):
    """Means of the actions that the loss of a prepared batch sees."""
    seen = []
    hook = algo.policy.head.register_forward_hook(lambda net, inputs, output: seen.append(output))
    losses(algo, batch)
    hook.remove()
    return seen[0].mean


@pytest.mark.parametrize(
    ("algo", "steps", "first"),
    [
        (lambda: make(), 1, 3),
        (lambda: make(supervise_all_steps=True), 4, 0),
        (lambda: make_future(), 4, 3),
        (lambda: make(seq_length=W, pred_future_acs=True), 4, 3),
        (lambda: make_rotary(), 10, 0),
        # A context shorter than the window: the newest frames.
        (lambda: make(frame_stack=6, supervise_all_steps=True), 4, 2),
    ],
)
def test_which_actions_are_learned(algo, steps, first):
    algo = algo()
    batch = tiny_batch(algo, 5)
    selected = algo.process_batch_for_training(batch)
    assert torch.equal(selected["actions"], batch["actions"][:, first : first + steps])
    assert predicted(algo, selected).shape == selected["actions"].shape


def test_the_newest_frames_are_seen():
    algo = make(frame_stack=6)
    batch = tiny_batch(algo, 5)
    seen = algo.process_batch_for_training(batch)["obs"]["state"]
    assert torch.equal(seen, batch["obs"]["state"][:, 2:6])
    algo.set_eval()
    state = algo.initial_state(5)
    for t in range(6):
        step = algo.act({"state": batch["obs"]["state"][:, t]}, state)
        state = step.state
    expected = predicted(algo, algo.process_batch_for_training(batch))[:, -1]
    torch.testing.assert_close(step.action, expected)


def test_padded_steps_are_not_supervised():
    algo = make(supervise_all_steps=True)
    algo.set_eval()
    batch = tiny_batch(algo, 5)
    batch["pad_mask"][:, :3] = False
    expected = losses(algo, algo.process_batch_for_training(batch))["Loss"]
    batch["actions"][:, :3] = 0.9
    changed = losses(algo, algo.process_batch_for_training(batch))["Loss"]
    assert expected == changed


def test_future_actions_know_the_newest_observation():
    """robomimic's first one sees the oldest observation only, and that is the one it executes."""
    algo = make_future()
    algo.set_eval()
    window = torch.randn(1, W, 3, requires_grad=True)
    features, _ = algo.policy({"state": window})
    algo.policy.head(features).mean[0, 0].sum().backward()
    assert (window.grad[0, -1] != 0).all()


def test_future_actions_are_executed():
    algo = make_future(("algo.chunk.enabled=true", f"algo.chunk.size={W}", "algo.chunk.execute=3"))
    algo.set_eval()
    state = algo.initial_state(1)
    actions, chunks = [], []
    for _ in range(4):
        step = algo.act({"state": torch.randn(1, 3)}, state)
        state = step.state
        actions.append(step.action[0])
        chunks.append(step.extras["chunk"][0])
    assert torch.equal(chunks[0][1], actions[1])
    assert torch.equal(chunks[0][2], actions[2])
    assert not torch.equal(chunks[0][3], actions[3])


def test_acting_from_the_cache_is_the_pass_over_the_whole_episode():
    algo = make_rotary()
    algo.set_eval()
    episode = torch.randn(2, 15, 3)
    features, _ = algo.policy({"state": episode})
    expected = algo.policy.head(features).mean
    state = algo.initial_state(2)
    for t in range(15):
        step = algo.act({"state": episode[:, t]}, state)
        state = step.state
        torch.testing.assert_close(step.action, expected[:, t], rtol=1e-4, atol=1e-5)


def test_a_row_that_begins_anew_forgets():
    algo = make_rotary()
    algo.set_eval()
    state = algo.initial_state(2)
    for _ in range(3):
        state = algo.act({"state": torch.randn(2, 3)}, state).state
    state = algo.reset_state(state, torch.tensor([False, True]))
    obs = {"state": torch.randn(2, 3)}
    fresh = algo.act(obs, algo.initial_state(2)).action
    action = algo.act(obs, state).action
    torch.testing.assert_close(action[1], fresh[1])
    assert not torch.allclose(action[0], fresh[0])


def test_chunks_at_each_step():
    algo = make(
        ("algo.chunk.enabled=true", "algo.chunk.size=3", "algo.chunk.execute=2"),
        seq_length=3,
        supervise_all_steps=True,
    )
    batch = tiny_batch(algo, 5)
    selected = algo.process_batch_for_training(batch)
    assert selected["actions"].shape == (5, W, 3, 2)
    assert torch.equal(selected["actions"][:, 1], batch["actions"][:, 1:4])
    assert math.isfinite(losses(algo, selected)["Loss"])


def test_a_mixture():
    algo = make(("algo.gmm.enabled=true",), supervise_all_steps=True)
    assert type(algo) is BC_Transformer_GMM
    info = losses(algo, algo.process_batch_for_training(tiny_batch(algo, 5)))
    assert info["Log_Likelihood"] == pytest.approx(-info["Loss"])
    assert type(make()) is BC_Transformer


@pytest.mark.parametrize("options", [{}, {"rotary": True}])
def test_it_remembers_what_one_observation_does_not_show(options):
    """The action is what was shown two steps ago."""
    learning = ("algo.optim_params.policy.learning_rate.initial=0.01",)
    if options:
        algo = make(
            learning,
            frame_stack=1,
            seq_length=8,
            ac_dim=1,
            rotary_embedding=True,
            supervise_all_steps=True,
        )
    else:
        algo = make(learning, ac_dim=1)
    generator = torch.Generator().manual_seed(0)

    def batch(size, steps):
        shown = torch.randint(2, (size, steps + 2, 1), generator=generator).float() - 0.5
        return {
            "obs": {"state": shown[:, 2:].expand(-1, -1, 3) * 1.0},
            "actions": torch.cat([torch.zeros(size, 2, 1), shown[:, 2:-2]], 1),
            "pad_mask": torch.arange(steps).expand(size, -1) >= 2,
        }

    steps = 8 if options else W
    test = batch(32, steps)

    def update(_):
        algo.set_train()
        algo.train_on_batch(algo.process_batch_for_training(batch(32, steps)), 1)

    def learned():
        algo.set_eval()
        state = algo.initial_state(32)
        for t in range(steps):
            action, state, _ = algo.act({"state": test["obs"]["state"][:, t]}, state)
        error = (action.detach() - test["actions"][:, -1]).abs().mean()
        return float(error) < 0.1  # without memory 0.5

    assert within(300, update, learned)
