"""Residual VQ: codes by hand, moving averages by hand, revival, gradients, exact resume, learning."""

import copy

import pytest
import torch

from imitate.models.vq import ChunkAutoencoder, ResidualVQ


def by_hand(**kwargs):
    """Two layers of two codes on a line: 0 and 10, then -1 and 2."""
    vq = ResidualVQ(1, 2, 2, **{"decay": 0.5, "revive_below": 0.0, **kwargs})
    vq.codebooks.copy_(torch.tensor([[[0.0], [10.0]], [[-1.0], [2.0]]]))
    vq.sums.copy_(vq.codebooks)  # counts are ones
    vq.initialized.fill_(True)
    return vq


def test_codes_by_hand():
    x = torch.tensor([[1.5], [9.0], [4.0]])
    found = by_hand()(x)
    # 1.5 -> 0 leaves 1.5 -> 2; 9 -> 10 leaves -1 -> -1; 4 -> 0 leaves 4 -> 2.
    assert found.codes.tolist() == [[0, 1], [1, 0], [0, 1]]
    assert found.vectors.flatten().tolist() == [2.0, 9.0, 2.0]
    assert found.commitment.tolist() == [1.5**2 + 0.5**2, 1.0, 4.0**2 + 2.0**2]
    assert by_hand().lookup(found.codes).flatten().tolist() == [2.0, 9.0, 2.0]


def test_codes_follow_their_members_by_hand():
    vq = by_hand()
    vq(torch.tensor([[1.5], [9.0], [4.0]]), learn=True)
    # Layer 0, decay 1/2: counts (1 + 2) / 2 and (1 + 1) / 2, sums (0 + 5.5) / 2 and (10 + 9) / 2.
    assert vq.counts[0].tolist() == [1.5, 1.0]
    assert vq.codebooks[0].flatten().tolist() == pytest.approx([2.75 / 1.5, 9.5])
    # Layer 1 saw what the old codes left: -1 for the first code; 1.5 and 4 for the second.
    assert vq.codebooks[1].flatten().tolist() == pytest.approx([-1.0, (2.0 + 5.5) / 3.0])


def test_without_learn_nothing_moves_even_in_training_mode():
    vq = by_hand().train()
    before = copy.deepcopy(vq.state_dict())
    vq(torch.randn(8, 1))
    assert all(torch.equal(before[k], v) for k, v in vq.state_dict().items())


def test_a_code_without_members_is_revived():
    torch.manual_seed(0)
    vq = by_hand(revive_below=0.6)
    vq(torch.tensor([[0.5], [0.25]]), learn=True)
    # Nothing is near 10: its count falls to 1/2, below 0.6, and it becomes one of the inputs.
    assert vq.codebooks[0, 1].item() in (0.5, 0.25) and vq.counts[0, 1].item() == 1.0


def test_gradient_passes_as_if_nothing_happened():
    x = torch.tensor([[1.5], [9.0]], requires_grad=True)
    by_hand()(x).vectors.mul(torch.tensor([[3.0], [5.0]])).sum().backward()
    assert x.grad.flatten().tolist() == [3.0, 5.0]
    x.grad = None
    by_hand()(x).commitment.sum().backward()
    # d/dx of (x - c)^2 in both layers: 2 * 1.5 - 2 * 0.5 and 2 * (-1) + 2 * 0.
    assert x.grad.flatten().tolist() == [2.0, -2.0]


def test_first_batch_sets_the_codes_to_its_clusters():
    torch.manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    which = torch.arange(400) % 4
    vq = ResidualVQ(2, 4, 1, kmeans_steps=20)
    found = vq(centres[which] + 0.1 * torch.randn(400, 2), learn=True)
    assert bool(vq.initialized)
    assert found.codes.flatten().unique(return_counts=True)[1].tolist() == [100] * 4
    order = torch.cdist(centres, vq.codebooks[0]).min(1)
    assert order.values.max() < 0.1
    assert sorted(order.indices.tolist()) == [0, 1, 2, 3]


def test_fewer_inputs_than_codes():
    vq = ResidualVQ(3, 8, 2)
    x = torch.randn(3, 3)
    torch.testing.assert_close(vq(x, learn=True).vectors, x)


def test_two_layers_leave_less_than_one():
    torch.manual_seed(0)
    x = torch.randn(512, 4)
    one, two = ResidualVQ(4, 16, 1), ResidualVQ(4, 16, 2)
    for _ in range(20):
        one(x, learn=True)
        two(x, learn=True)
    error = [(vq(x).vectors - x).square().mean().item() for vq in (one, two)]
    assert error[1] < 0.6 * error[0]


def test_resume_is_exact():
    batches = torch.randn(6, 32, 3, generator=torch.Generator().manual_seed(0))

    def run(vq, part):
        for x in part:
            vq(x, learn=True)
        return vq.state_dict()

    torch.manual_seed(1)
    vq = ResidualVQ(3, 8, 2, revive_below=2.0)
    saved = copy.deepcopy(run(vq, batches[:3]))
    rng = torch.get_rng_state()
    whole = run(vq, batches[3:])
    resumed = ResidualVQ(3, 8, 2, revive_below=2.0)
    resumed.load_state_dict(saved)
    torch.set_rng_state(rng)
    again = run(resumed, batches[3:])
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_under_autocast_the_codes_stay_exact():
    vq, x = by_hand(), torch.tensor([[1.5], [9.0]])
    with torch.autocast("cpu", torch.bfloat16):
        found = vq(x.bfloat16(), learn=True)
    assert found.vectors.dtype == torch.float32 and found.codes.tolist() == [[0, 1], [1, 0]]


def test_autoencoder_shapes_and_gradients():
    torch.manual_seed(0)
    net = ChunkAutoencoder(2, 5, latent_dim=8, hidden_dims=(16,), num_codes=4, num_layers=3)
    actions = torch.randn(6, 5, 2)
    found, quantized = net(actions, learn=True)
    assert found.shape == (6, 5, 2)
    assert quantized.codes.shape == (6, 3)
    ((found - actions).abs().mean() + quantized.commitment.mean()).backward()
    for name, p in net.named_parameters():
        assert p.grad.abs().sum() > 0, name
    codes = net.encode(actions.view(2, 3, 5, 2))
    assert codes.shape == (2, 3, 3)
    assert torch.equal(codes.view(6, 3), net(actions)[1].codes)
    torch.testing.assert_close(net.decode(codes).view(6, 5, 2), net(actions)[0])


def test_autoencoder_learns_a_few_chunks():
    """Four kinds of chunks and four codes: almost no error, and each kind has a code of its own."""
    torch.manual_seed(0)
    kinds = torch.randn(4, 5, 2)
    net = ChunkAutoencoder(2, 5, latent_dim=8, hidden_dims=(32,), num_codes=4, num_layers=1)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(300):
        actions = kinds[torch.randint(4, (64,))]
        found, quantized = net(actions, learn=True)
        loss = (found - actions).abs().mean() + 5 * quantized.commitment.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (net(kinds)[0] - kinds).abs().mean() < 0.05
    assert len(set(net.encode(kinds).flatten().tolist())) == 4
