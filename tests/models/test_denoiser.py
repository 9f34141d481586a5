"""What a denoiser computes once for all steps, and what is compiled of it."""

import pytest
import torch

from imitate import algo_factory, load_config
from imitate.functional.prefix import Given

NETWORKS = {
    "unet": {"down_dims": [8, 16], "diffusion_step_embed_dim": 8},
    "mlp": {"hidden_dim": 16},
    "transformer": {"embed_dim": 16, "num_layers": 1, "num_heads": 2},
}


def make_denoiser(network, max_delay=0):
    torch.manual_seed(0)
    algo = {name: {"enabled": False} for name in NETWORKS} | {
        network: {"enabled": True, **NETWORKS[network]},
        "prefix": {"max_delay": max_delay},
    }
    tree = {
        "algo_name": "flow_policy",
        "algo": algo,
        "observation": {"modalities": {"obs": {"low_dim": ["state"]}}},
    }
    return algo_factory("flow_policy", load_config(tree), {"state": (3,)}, 2).nets["policy"].eval()


@pytest.mark.parametrize("network", NETWORKS)
def test_for_steps_is_the_forward_pass(network):
    denoiser = make_denoiser(network)
    condition = denoiser.condition({"state": torch.randn(5, 2, 3)})
    at = denoiser.for_steps([0.0, 50.0, 100.0], condition)
    noisy = torch.randn(5, 16, 2)
    for step in (0.0, 50.0, 100.0):
        torch.testing.assert_close(at(noisy, step), denoiser(noisy, step, condition))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_with_marks_sees_given_actions_and_where_they_are(network):
    denoiser = make_denoiser(network, max_delay=4)
    condition = denoiser.condition({"state": torch.randn(2, 2, 3)})
    noisy, actions = torch.randn(2, 2, 16, 2).unbind()
    mask = torch.zeros(2, 16, dtype=torch.bool)
    mask[:, :3] = True
    given = Given(actions, mask)
    seen = denoiser(noisy, 50.0, condition, given)
    assert seen.shape == (2, 16, 2)
    at = denoiser.for_steps([50.0], condition, given)
    torch.testing.assert_close(at(noisy, 50.0), seen)
    other = noisy.clone()
    other[:, :3] = 9.0  # in the places of given actions
    assert torch.equal(denoiser(other, 50.0, condition, given), seen)
    assert not torch.allclose(denoiser(given.fill(noisy), 50.0, condition), seen), "the marks tell"
    hidden = Given(actions, torch.zeros_like(mask))
    assert torch.equal(denoiser(noisy, 50.0, condition, hidden), denoiser(noisy, 50.0, condition))


def test_the_encoder_is_compiled_too():
    denoiser, compiled = make_denoiser("mlp"), []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    denoiser.compile(backend=backend)
    condition = denoiser.condition({"state": torch.randn(5, 2, 3)})
    of_encoder = len(compiled)
    assert of_encoder > 0
    denoiser(torch.randn(5, 16, 2), torch.zeros(5), condition)
    assert len(compiled) > of_encoder
