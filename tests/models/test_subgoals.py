import torch

from imitate.algo.sections import VAEConfig
from imitate.config import ObservationConfig
from imitate.models.actor import GroupEncoder
from imitate.models.observation import ObservationEncoder
from imitate.models.subgoals import SubgoalNetwork, SubgoalVAE

SHAPES = {"cube.pos": (3,), "grid": (2, 4)}


def encoder(**shapes):
    return ObservationEncoder(shapes, dict.fromkeys(shapes, "low_dim"), ObservationConfig().encoder)


def test_a_mean_subgoal_has_the_shape_of_each_key():
    torch.manual_seed(0)
    net = SubgoalNetwork(GroupEncoder(encoder(s=(5,)), encoder(task=(2,))), SHAPES, (8,))
    out = net({"s": torch.randn(4, 5)}, {"task": torch.randn(4, 2)})
    assert {key: value.shape for key, value in out.items()} == {
        "cube.pos": (4, 3),
        "grid": (4, 2, 4),
    }
    assert net.net.heads["cube/pos"].weight.shape == (3, 8)


def test_a_head_of_its_own_predicts_each_key_without_squashing():
    net = SubgoalNetwork(GroupEncoder(encoder(s=(1,))), {"a": (1,), "b": (2,)}, ())
    torch.nn.init.constant_(net.net.heads["a"].weight, 3.0)
    torch.nn.init.constant_(net.net.heads["a"].bias, 1.0)
    torch.nn.init.constant_(net.net.heads["b"].weight, -5.0)
    torch.nn.init.constant_(net.net.heads["b"].bias, 0.0)
    out = net({"s": torch.tensor([[2.0]])})
    assert out["a"].tolist() == [[7.0]]
    assert out["b"].tolist() == [[-10.0, -10.0]]


def vae(**section):
    torch.manual_seed(0)
    shapes = {"x": (2,), "y": (3, 2)}
    subgoal = ObservationEncoder(
        shapes, dict.fromkeys(shapes, "low_dim"), ObservationConfig().encoder
    )
    config = VAEConfig.model_validate({"enabled": True, "latent_dim": 3, **section})
    return SubgoalVAE(GroupEncoder(encoder(s=(4,))), subgoal, config)


def test_samples_differ_and_follow_the_generator():
    net, obs = vae(), {"s": torch.randn(5, 4)}
    samples = net.sample(obs, None, 7, torch.Generator().manual_seed(3))
    assert samples["x"].shape == (5, 7, 2)
    assert samples["y"].shape == (5, 7, 3, 2)
    assert (samples["x"].std(1) > 0).all()
    again = net.sample(obs, None, 7, torch.Generator().manual_seed(3))
    assert torch.equal(samples["y"], again["y"])
    assert net.sample_prior(obs, None, 7).shape == (5, 7, 3)


def test_the_terms_of_the_bound():
    """Mean 1 and log variance 0 of three latents: KL to the standard normal 3 * 0.5."""
    net = vae()
    for head, bias in (("mean", 1.0), ("logvar", 0.0)):
        torch.nn.init.zeros_(net.vae.encoder.heads[head].weight)
        torch.nn.init.constant_(net.vae.encoder.heads[head].bias, bias)
    for head in net.vae.decoder.heads.values():
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.constant_(head.bias, 2.5)  # out of a tanh's reach
    subgoals = {"x": torch.randn(5, 2), "y": torch.randn(5, 3, 2)}
    out = net(subgoals, {"s": torch.randn(5, 4)})
    torch.testing.assert_close(out.kl, torch.full((5,), 1.5))
    assert torch.equal(out.reconstruction["y"], torch.full((5, 3, 2), 2.5))
    assert out.latent.shape == (5, 3)


def test_latents_of_classes_are_one_hot_side_by_side():
    net = vae(prior={"use_categorical": True, "categorical_dim": 4})
    latents = net.sample_prior({"s": torch.randn(2, 4)}, None, 6)
    assert latents.shape == (2, 6, 12)
    assert torch.equal(latents.sum(-1), torch.full((2, 6), 3.0))
