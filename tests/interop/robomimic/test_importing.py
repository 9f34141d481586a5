"""Checkpoints of robomimic act and learn here as they did there: compared with numbers that robomimic wrote."""

import json

import numpy as np
import pytest
import torch

from imitate import policy_from_checkpoint
from imitate.errors import CheckpointError
from imitate.models.heads import TanhDistribution
from imitate.policy.checkpoint import algo_from_checkpoint, converted

EXACT = 1e-5
L2, ACTION = {"L2_Loss": "l2_loss"}, {"Loss": "action_loss"}
LATENT = {"Reconstruction_Loss": "recons_loss", "KL_Loss": "kl_loss"}
CRITICS = {
    "Critic_Loss": ("critic/critic1_loss", "critic/critic2_loss"),
    "Actor_Loss": "actor/loss",
}
EVALUATED = "bc_minmax bc_normobs bc_normobs_v030 bc_image bc_rnn bc_rnn_mlp bc_transformer"
TRAINED = "bc_gaussian bc_gmm bc_gmm_v030 bc_rnn_gmm bc_rnn_gmm_v030"


def test_actions_of_a_whole_sequence(every, recorded):
    found = recorded(every)
    policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=found.path)
    steps = found.group("seq/obs/")
    torch.manual_seed(0)
    policy.start_episode()
    actions = [policy({key: value[t] for key, value in steps.items()}) for t in range(12)]
    np.testing.assert_allclose(actions, found["seq/actions"], atol=EXACT, rtol=0)


def test_a_dict_that_is_loaded_already_acts_too(recorded):
    found = recorded("bc_normobs_v030")
    policy, ckpt = policy_from_checkpoint(device="cpu", ckpt_dict=found.raw())
    first = {key: value[0] for key, value in found.group("seq/obs/").items()}
    np.testing.assert_allclose(policy(first), found["seq/actions"][0], atol=EXACT)
    assert ckpt["env_metadata"]["env_name"] == "Lift"
    assert ckpt["shape_metadata"]["ac_dim"] == 7


@pytest.mark.parametrize(
    "name", ["bc", "bc_gaussian", "bc_gmm", "bc_image", "bc_normobs", "cql", "iql", "td3_bc"]
)
def test_features(name, recorded):
    found = recorded(name)
    algo = found.algo()
    actor = algo.nets["policy" if "policy" in algo.nets else "actor"]
    features = actor.encoder(found.prepared(algo))
    assert torch.allclose(features, found.tensor("encoder/features"), atol=EXACT)


@pytest.mark.parametrize("name", [*TRAINED.split(), "bc_transformer_gmm", "cql", "iql"])
@torch.no_grad()
def test_distributions(name, recorded):
    found = recorded(name)
    algo = found.algo()
    net = "policy" if name.startswith("bc") else "actor"
    obs = found.prepared(algo)
    prefix = "dist"
    if "rnn" in name:  # one pass over the sequence
        obs = {key: value[None] for key, value in obs.items()}
        prefix = "unroll_dist"
    if "transformer" in name:
        obs = algo.preprocess.prepare_obs(found.group("seq/stacked_obs/"))
    features, _ = algo.nets[net](obs)
    distribution = algo.nets[net].head(features)
    base = distribution.base if isinstance(distribution, TanhDistribution) else distribution
    means = base.means if hasattr(base, "means") else base.mean
    for key, values in (("means", means), ("scales", base.stds)):
        expected = found.tensor(f"{prefix}/{key}")
        assert torch.allclose(values.reshape(expected.shape), expected, atol=EXACT)
    if hasattr(base, "logits"):
        logits = found.tensor(f"{prefix}/logits")
        assert torch.allclose(base.logits.reshape(logits.shape), logits, atol=EXACT)


@pytest.mark.parametrize("name", ["bc_rnn", "bc_rnn_mlp", "bc_rnn_gmm", "bc_rnn_gmm_v030"])
@torch.no_grad()
def test_state_of_a_recurrent_policy_after_a_pass(name, recorded):
    found = recorded(name)
    algo = found.algo()
    obs = {key: value[None] for key, value in found.prepared(algo).items()}
    features, state = algo.nets["policy"](obs)
    for key in ("h", "c"):
        assert torch.allclose(state[key][0], found.tensor(f"unroll/state_{key}"), atol=EXACT)
    if "unroll/actions" in found.arrays:
        actions = algo.nets["policy"].head(features).mean[0]
        assert torch.allclose(actions, found.tensor("unroll/actions"), atol=EXACT)


@torch.no_grad()
def test_actions_of_all_steps_of_a_transformer(recorded):
    found = recorded("bc_transformer")
    algo = found.algo()
    obs = algo.preprocess.prepare_obs(found.group("seq/stacked_obs/"))
    features, _ = algo.nets["policy"](obs)
    actions = algo.nets["policy"].head(features).mean
    assert torch.allclose(actions, found.tensor("unroll/actions"), atol=EXACT)


@pytest.mark.parametrize(
    ("name", "net"),
    [("bc_vae", "policy"), ("bc_vae_gmm_prior", "policy"), ("bcq", "action_sampler")],
)
@torch.no_grad()
def test_vae(name, net, recorded):
    found = recorded(name)
    algo = found.algo()
    vae = algo.nets[net].vae
    condition = algo.nets[net].encoder(found.prepared(algo), None)
    posterior = vae.encode(found.tensor("seq/dataset_actions").float(), condition)
    decoded = vae.decode(found.tensor("vae/z"), condition)
    assert torch.allclose(decoded, found.tensor("vae/decoded_actions"), atol=EXACT)
    for key in ("mean", "logvar"):
        assert torch.allclose(posterior[key], found.tensor(f"vae/posterior_{key}"), atol=EXACT)
    torch.manual_seed(0)
    drawn = vae.sample_prior(condition)
    assert torch.allclose(drawn, found.tensor("vae/prior_sample_seed0"), atol=EXACT)


@torch.no_grad()
def test_mixture_prior(recorded):
    found = recorded("bc_vae_gmm_prior")
    algo = found.algo()
    latent = algo.nets["policy"].vae.latent
    prior = latent.prior(algo.nets["policy"].encoder(found.prepared(algo), None))
    assert torch.allclose(prior["mean"], found.tensor("vae/prior_means"), atol=EXACT)
    assert torch.allclose(prior["logvar"], found.tensor("vae/prior_logvars"), atol=EXACT)
    weights = prior["weight"].log_softmax(-1)
    assert torch.allclose(weights, found.tensor("vae/prior_logweights"), atol=EXACT)


@pytest.mark.parametrize("name", ["bcq", "cql", "iql", "td3_bc"])
@torch.no_grad()
def test_values(name, recorded):
    found = recorded(name)
    algo = found.algo()
    obs, given = found.prepared(algo), found.tensor("seq/dataset_actions").float()
    for net in ("critic", "critic_target"):
        values = algo.nets[net](obs, given)
        for member in range(2):
            expected = found.tensor(f"value/{net}_{member}")[:, 0]
            assert torch.allclose(values[member], expected, atol=EXACT)
    if name == "iql":
        assert torch.allclose(algo.nets["vf"](obs)[0], found.tensor("value/vf")[:, 0], atol=EXACT)
    if name == "td3_bc":
        features, _ = algo.nets["actor_target"](obs)
        target = algo.nets["actor_target"].head(features).mean
        assert torch.allclose(target, found.tensor("value/actor_target"), atol=EXACT)
    if name == "bcq":
        for net, suffix in (("actor", ""), ("actor_target", "_target")):
            moved = algo.nets[net](obs, given[:, None], None)[:, 0]
            expected = found.tensor(f"value/perturbed_actions{suffix}")
            assert torch.allclose(moved, expected, atol=EXACT)


LOSSES = {
    "bc": ("eval", L2 | ACTION),
    **dict.fromkeys(EVALUATED.split(), ("eval", L2)),
    **dict.fromkeys(TRAINED.split(), ("train", ACTION)),
    "bc_transformer_gmm": ("eval", ACTION),
    **dict.fromkeys(("bc_vae", "bc_vae_gmm_prior"), ("train", LATENT)),
    "iql": ("train", {"Vf_Loss": "vf/v_loss", **CRITICS}),
    "td3_bc": ("train", CRITICS),
    "bcq": ("train", {"Action_Sampler_Loss": "action_sampler/loss", **CRITICS}),
}
"""Randomizers and dropout are off in evaluation; the density that acts is not what is learned, so that those of
stochastic policies are compared in training."""


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, recorded):
    found = recorded(name)
    algo = found.algo()
    mode, pairs = LOSSES[name]
    algo.nets.train(mode == "train")
    batch = algo.process_batch_for_training(found.batch())
    torch.manual_seed(0)
    with torch.no_grad():
        info = algo.train_on_batch(batch, epoch=1, validate=True)
    for ours, theirs in pairs.items():
        parts = (theirs,) if isinstance(theirs, str) else theirs
        expected = sum(float(found[f"loss_{mode}/{part}"]) for part in parts)
        assert float(info[ours]) == pytest.approx(expected, abs=EXACT, rel=EXACT), ours


@torch.no_grad()
def test_entropy_and_conservative_weights_of_cql(recorded):
    found = recorded("cql")
    algo = found.algo()
    for net, key in (("entropy_weight", "entropy_weight"), ("cql_weight", "critic/cql_weight")):
        assert float(algo.nets[net]()) == pytest.approx(float(found[f"loss_eval/{key}"]), abs=EXACT)


def test_nothing_is_clipped_and_nothing_normalized_again(recorded):
    ckpt = recorded("bc_normobs").checkpoint()
    assert "action_low" not in ckpt["shape_metadata"]
    stats = recorded("bc_normobs").raw()["obs_normalization_stats"]
    for key, entry in ckpt["preprocess"]["obs"].items():
        for part in ("offset", "scale"):
            assert entry[part].tolist() == np.float32(stats[key][part][0]).tolist()


def test_draws_of_the_caller_stay(recorded):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    recorded("bc_gmm").checkpoint()
    assert torch.equal(torch.rand(2), expected)


def test_several_datasets(recorded):
    """Lists, one entry per dataset, which robomimic's own loader cannot read."""
    found = recorded("bc_normobs")
    raw = found.raw()
    for key in ("env_metadata", "shape_metadata", "obs_normalization_stats"):
        raw[key] = [raw[key], raw[key]]
    policy, ckpt = policy_from_checkpoint(device="cpu", ckpt_dict=raw)
    first = {key: value[0] for key, value in found.group("seq/obs/").items()}
    np.testing.assert_allclose(policy(first), found["seq/actions"][0], atol=EXACT)
    assert len(ckpt["environments"]) == 2
    raw["obs_normalization_stats"][1] = {
        key: {"offset": entry["scale"], "scale": entry["scale"]}
        for key, entry in raw["obs_normalization_stats"][1].items()
    }
    with pytest.raises(CheckpointError, match="obs_normalization_stats differ between"):
        converted(raw)


def test_statistics_that_are_null(recorded):
    raw = recorded("bc").raw()
    raw["obs_normalization_stats"] = None
    raw["action_normalization_stats"]["actions"] = {"offset": None, "scale": None}
    algo = algo_from_checkpoint(converted(raw))
    assert not algo.preprocess.normalizes_obs and not algo.preprocess.normalizes_actions


def change(raw, **changes):
    tree = json.loads(raw["config"])
    for path, value in changes.items():
        node = tree
        *parents, last = path.split("__")
        for parent in parents:
            node = node[parent]
        node[last] = value
    return {**raw, "config": json.dumps(tree)}


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("bc", "algo__actor_layer_dims", [32, 47], r"'policy\.nets\.mlp\._model\.2\.weight' has shape"),
        ("bc", "algo__actor_layer_dims", [32], r"shape|no network of imitate has, such as"),
        ("bc", "algo__gmm__enabled", True, r"tensor 'policy\.nets\.decoder\.nets\.mean\.weight'|that no network"),
        ("bc", "algo__does_not_exist", 3, "does_not_exist"),
        ("bc", "train__action_keys", ["actions", "gripper"], "action_normalization_stats have no entry for gripper"),
        ("bc_transformer", "algo__transformer__pred_future_acs", True, r"theirs\.pth: .*pred_future_acs"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(name, key, value, words, recorded):
    with pytest.raises(CheckpointError, match=words):
        converted(change(recorded(name).raw(), **{key: value}), "theirs.pth")


def test_losses_are_compared_for_all_but_cql(every):
    """CQL draws its actions in another order; what its losses are made of is compared in `test_values`."""
    assert every in LOSSES or every == "cql"
