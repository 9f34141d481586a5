"""Goal prediction: losses by hand, samples of several futures, what it refuses."""

import pytest
import torch

from imitate.algo.gl import GL, GL_VAE
from imitate.config.readiness import check_trainable
from imitate.errors import DatasetError, UserError
from tests.algo.conftest import losses
from tests.tiny import tiny_algo

SHAPES = {"a": (1,), "b": (2,)}


def make(vae=False, train=None, observation=None, **section):
    section["vae"] = vae if isinstance(vae, dict) else {"enabled": vae, "latent_dim": 2}
    words = {"algo": section, "train": {"num_epochs": 10, **(train or {})}}
    words["observation"] = observation or {}
    return tiny_algo("gl", obs={"a": 1}, goal={"a": 1, "b": 2}, hidden=(64, 64), **words)


def constant(heads, **values):
    for name, value in values.items():
        torch.nn.init.zeros_(heads[name].weight)
        heads[name].bias.data = torch.tensor(value)


def batch(weight=None):
    return {
        "obs": {"a": torch.zeros(2, 1)},
        "goal_obs": None,
        "subgoals": {
            "a": torch.tensor([[1.0], [3.0]]),
            "b": torch.tensor([[0.0, 2.0], [4.0, 0.0]]),
        },
        "weight": weight,
    }


def test_the_section_chooses_the_class():
    assert type(make()) is GL
    assert type(make(vae=True)) is GL_VAE


@torch.no_grad()
def test_the_loss_of_means_is_summed_over_keys():
    """Prediction 1 and (1, 1): a: (0 + 4) / 2 = 2; b: (1 + 1 + 9 + 1) / 4 = 3."""
    algo = make()
    constant(algo.nets["goal_network"].net.heads, a=[1.0], b=[1.0, 1.0])
    info = losses(algo, batch())
    assert info["a_Loss"] == pytest.approx(2.0)
    assert info["b_Loss"] == pytest.approx(3.0)
    assert info["Loss"] == pytest.approx(5.0)
    weighted = losses(algo, batch(weight=torch.tensor([1.0, 0.0])))
    assert weighted["Loss"] == pytest.approx(0.0 + 1.0)


@torch.no_grad()
@pytest.mark.parametrize(("sums", "reconstruction"), [(False, 2.5), (True, 8.0)])
def test_the_loss_of_the_vae(sums, reconstruction):
    """The mean over keys of 2 and 3; or all squares of a sample, (0 + 2 + 4 + 10) / 2. KL of N(1, 1), twice 0.5."""
    decoder = {"reconstruction_sum_across_elements": sums}
    algo = make(vae={"enabled": True, "latent_dim": 2, "kl_weight": 0.1, "decoder": decoder})
    vae = algo.nets["goal_network"].vae
    constant(vae.encoder.heads, mean=[1.0, 1.0], logvar=[0.0, 0.0])
    constant(vae.decoder.heads, a=[1.0], b=[1.0, 1.0])
    info = losses(algo, batch())
    assert info["Reconstruction_Loss"] == pytest.approx(reconstruction)
    assert info["KL_Loss"] == pytest.approx(1.0)
    assert info["Loss"] == pytest.approx(reconstruction + 0.1)


def test_subgoals_are_those_of_the_batch_or_of_its_window():
    algo = make(train={"seq_length": 3}, subgoal_horizon=3)
    raw = {"obs": {"a": torch.zeros(2, 3, 1)}, "actions": torch.zeros(2, 3, 1)}
    window = {key: torch.arange(3.0).view(1, 3, 1).expand(2, 3, *s) for key, s in SHAPES.items()}
    from_window = algo.process_batch_for_training({**raw, "next_obs": window})
    assert from_window["subgoals"]["b"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    given = {key: torch.full((2, *shape), 7.0) for key, shape in SHAPES.items()}
    chosen = algo.process_batch_for_training({**raw, "next_obs": window, "subgoals": given})
    assert chosen["subgoals"]["a"].tolist() == [[7.0], [7.0]]
    with pytest.raises(DatasetError, match=r"3 steps ahead.*build_datasets"):
        algo.process_batch_for_training(
            {**raw, "next_obs": {k: v[:, :2] for k, v in window.items()}}
        )


def test_the_weight_is_that_of_the_samples_own_step():
    algo = make(train={"frame_stack": 2, "seq_length": 3}, subgoal_horizon=3)
    window = {key: torch.zeros(2, 4, *shape) for key, shape in SHAPES.items()}
    raw = {"obs": {"a": torch.zeros(2, 4, 1)}, "actions": torch.zeros(2, 4, 1)}
    weight = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]])
    found = algo.process_batch_for_training({**raw, "next_obs": window, "weight": weight})
    assert found["weight"].tolist() == [2.0, 6.0]


def test_they_are_normalized_like_observations():
    algo = make()
    for key, size in (("a", 1), ("b", 2)):
        algo.preprocess.set_obs_normalization(
            key, torch.full((size,), 1.0), torch.full((size,), 2.0)
        )
    raw = {
        "obs": {"a": torch.full((1, 1, 1), 5.0)},
        "actions": torch.zeros(1, 1, 1),
        "subgoals": {"a": torch.full((1, 1), 5.0), "b": torch.full((1, 2), 3.0)},
    }
    ready = algo.process_batch_for_training(raw)
    assert ready["obs"]["a"].item() == ready["subgoals"]["a"].item() == 2.0
    assert ready["subgoals"]["b"].tolist() == [[1.0, 1.0]]


def two_futures(size):
    """From 0 one gets to -1 or to 1."""
    side = (torch.arange(size) % 2 * 2.0 - 1.0)[:, None]
    return {
        "obs": {"a": torch.zeros(size, 1)},
        "goal_obs": None,
        "subgoals": {"a": side, "b": side.expand(-1, 2)},
        "weight": None,
    }


@pytest.mark.parametrize("vae", [False, True])
def test_a_vae_samples_both_futures_where_the_mean_is_neither(vae):
    fast = {"goal_network": {"learning_rate": {"initial": 0.01}}}
    section = {"enabled": vae, "latent_dim": 2, "kl_weight": 0.02}
    algo = make(optim_params=fast, vae=section)
    algo.set_train()
    for _ in range(100):
        algo.train_on_batch(two_futures(64), 1)
    algo.set_eval()
    with torch.no_grad():
        samples = algo.sample_subgoals({"a": torch.zeros(1, 1)}, None, 200)["a"][0, :, 0]
    if vae:
        assert 0.3 < float((samples > 0.5).float().mean()) < 0.7
        assert float((samples.abs() - 1).abs().mean()) < 0.3
    else:
        assert float(samples.abs().max()) < 0.2


def test_the_corrected_latent_is_the_prior_s_nearest_one():
    algo = make(vae=True)
    net = algo.nets["goal_network"]
    constant(net.vae.encoder.heads, mean=[1.0, -1.0], logvar=[-30.0, -30.0])
    obs, subgoals = batch()["obs"], batch()["subgoals"]
    posterior = algo.latents_of(subgoals, obs, None)
    assert torch.allclose(posterior, torch.tensor([1.0, -1.0]), atol=0.1)
    candidates = torch.tensor([[[0.0, 0.0], [1.1, -0.8], [3.0, -1.0]]]).expand(2, 3, 2)
    algo.sample_latents = lambda obs, goal, number: candidates[:, :number]
    assert torch.equal(algo.latents_of(subgoals, obs, None, 3), candidates[:, 1])
    assert torch.equal(algo.latents_of(subgoals, obs, None, 1), candidates[:, 0])


def test_the_temperature_of_classes_falls_with_the_epochs():
    prior = {"use_categorical": True, "categorical_temp_anneal_step": 0.1}
    algo = make(vae={"enabled": True, "latent_dim": 2, "prior": prior})
    algo.train_on_batch(batch(), 3)
    assert algo.nets["goal_network"].vae.latent.temperature == pytest.approx(0.7)


def test_a_planner_does_not_act():
    algo = make()
    with pytest.raises(UserError, match="train hbc or iris"):
        algo.get_action({"a": torch.zeros(1, 1)})
    check_trainable(algo.global_config)


def test_images_are_predicted_pixel_by_pixel():
    core = {"backbone_class": "ShallowConv", "feature_dimension": 8}
    observation = {
        "modalities": {"subgoal": {"rgb": ["cam"], "low_dim": ["b"]}},
        "encoder": {"rgb": {"core_kwargs": core}},
    }
    words = {"algo": {"vae": {"latent_dim": 2}}, "observation": observation}
    algo = tiny_algo("gl", obs={"cam": (3, 32, 32)}, goal={"b": 2}, **words)
    pixels = torch.randint(256, (2, 32, 32, 3), dtype=torch.uint8)
    raw = {
        "obs": {"cam": pixels[:, None]},
        "actions": torch.zeros(2, 1, 1),
        "subgoals": {"cam": pixels, "b": torch.zeros(2, 2)},
    }
    ready = algo.process_batch_for_training(raw)
    assert ready["subgoals"]["cam"].shape == (2, 3, 32, 32)
    info = algo.train_on_batch(ready, 1)
    assert torch.isfinite(info["Loss"])
    assert algo.sample_subgoals(ready["obs"], None, 3)["cam"].shape == (2, 3, 3, 32, 32)
