"""Networks with known weights: initial weights and outputs of today, and the defaults of their sizes."""

import inspect
import math

import pytest
import torch
from torch import nn

from imitate.errors import ConfigError
from imitate.models.attention import (
    causal_mask,
    head_dim,
    rotary_table,
    rotate,
    sinusoidal_positions,
)
from imitate.models.denoiser import NoiseNetwork
from imitate.models.denoising_networks import (
    DenoisingMLP,
    DiffusionTransformer,
    SinusoidalEmbedding,
)
from imitate.models.goal_networks import BilinearValue, GoalActor, GoalValue, SubgoalValue
from imitate.models.latent import Atoms, LogitEnsemble, SimNorm, normed_mlp, symexp, symlog
from imitate.models.pools import AttentionPool, QueryPool, SpatialSoftmax, make_pool
from imitate.models.reconstruction import ObservationDecoder, joined_errors
from imitate.models.subgoals import SubgoalNetwork
from imitate.models.unet import ConditionalUnet1D
from tests.refusals import refused


class Joined(nn.Module):
    """The features of observation and goal side by side."""

    output_dim = 4

    def forward(self, obs, goal=None):
        return torch.cat([obs["x"], obs["x"] ** 2 if goal is None else goal["x"]], -1)


class Alone(Joined):
    output_dim = 2

    def forward(self, obs):
        return obs["x"]


def waves(*shape, speed=1.0):
    """Numbers in [-1, 1] that all differ."""
    return torch.sin(speed * torch.arange(1.0, math.prod(shape) + 1)).reshape(shape)


def projected(*tensors):
    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    return float(flat @ waves(len(flat), speed=0.37).double())


def generator():
    return torch.Generator().manual_seed(3)


OBS, GOAL = {"x": waves(3, 2)}, {"x": waves(3, 2, speed=2.0)}
ACTIONS, DEEP = waves(3, 2, speed=3.0), {"x": waves(3, 4)}


UNET = {"down_dims": [8, 16], "diffusion_step_embed_dim": 6}
SHIFTS = {"cond_predict_scale": False, "n_groups": 4}
NARROW = {"hidden_dim": 8, "step_embed_dim": 6}
SMALL = {"n_layer": 1, "n_head": 2, "n_emb": 8}
SEES_ALL = {"n_cond_layers": 1, "causal_attn": False}


def of_actor(net):
    yield net(OBS, GOAL)
    yield net.decide({"obs": {"x": 9.0 * OBS["x"]}, "goal": GOAL})


def of_more(net):
    yield net(OBS, None, waves(3, 1))


def of_value(net):
    yield net(OBS, GOAL)


def of_q(net):
    yield net(OBS, GOAL, ACTIONS)


def of_pairs(net):
    yield net(OBS, GOAL, ACTIONS)
    yield net.pairs(OBS, GOAL, ACTIONS)


def of_values(net):
    yield from net(OBS, GOAL).values()


def of_noise(net):
    torch.manual_seed(1)
    features = net.encoder(OBS, GOAL)
    yield net(features, waves(3, 5, 2), waves(3, 5, 1))
    yield net.cloning_errors(OBS, GOAL, ACTIONS)
    yield net.follow(features, ACTIONS, 3)
    yield net.candidates(OBS, GOAL, 4, 2, generator())


def of_one_step(net):
    yield net(net.encoder(OBS, GOAL), ACTIONS)
    yield net.actions(OBS, GOAL, generator())
    yield net.decide({"obs": OBS, "goal": GOAL}, generator=generator())


def of_subgoals(net):
    yield from (net(OBS, GOAL), net.represent(OBS, GOAL), net(OBS, GOAL, net.mlps))


def of_logits(net):
    yield net(waves(2, 3, 4))
    yield net(waves(3, 3, 4), torch.tensor([1, 0, 1]))
    net.train()
    torch.manual_seed(2)
    yield net(waves(2, 3, 4))


def of_decoder(net):
    made = net(waves(2, 4))
    yield from made.values()
    errors = net.squared_errors(waves(2, 4), {"v": waves(2, 3, 2), "i": waves(2, 2, 9, 13)})
    yield joined_errors(errors)


def of_keypoints(net):
    yield net(waves(2, 3, 4, 5))
    yield net.keypoints(waves(2, 3, 4, 5))
    net.train()
    torch.manual_seed(2)
    yield net(waves(2, 3, 4, 5))


def of_denoiser(net):
    noisy, cond = waves(2, 4, 3), waves(2, 5)
    yield net(noisy, 7.0, cond)
    yield net(noisy, torch.tensor([1.0, 30.0]), cond)
    stacked = net.stacked if hasattr(net, "stacked") else net.films
    conditions = stacked([3.0, 9.0], cond)
    yield from conditions


def of_transformer(net):
    for steps in (4, 3):
        yield net(waves(2, steps, 3), 7.0, waves(2, 2, 5))


@pytest.mark.parametrize(
    ("make", "outputs", "at_first", "then"),
    [
        (lambda: GoalActor(Joined(), [8, 6], 2), of_actor, 0.514663694, 2.52835267),
        (lambda: GoalActor(Joined(), [8], 2, more=1), of_more, 0.48849587, 1.937212482),
        (lambda: GoalValue(Joined(), [8, 6]), of_value, 0.003603999, 2.510715423),
        (lambda: GoalValue(Joined(), [8], 2, 3, layer_norm=False), of_q, 0.176517869, 3.696155776),
        (lambda: BilinearValue(Alone(), Alone(), [8], 5, 2), of_pairs, 1.687655678, -0.78004401),
        (lambda: BilinearValue(Alone(), Alone(), [8], 5, 2, 1, layer_norm=False), of_pairs, -7.290643244, -1.312799549),
        (lambda: SubgoalValue(Alone(), Joined(), [8], 5), of_subgoals, -12.555686889, 5.728746721),
        (lambda: NoiseNetwork(Joined(), [8, 6], 2, has_time=True), of_noise, 1.641665214, -1.185936316),
        (lambda: NoiseNetwork(Joined(), [8], 2, has_time=False), of_one_step, 1.835867277, 0.142727945),
        (lambda: normed_mlp(4, [8, 6], 6, SimNorm(3)), lambda net: [net(DEEP["x"])], -11.875299935, 0.093259297),
        (lambda: normed_mlp(4, [8], 3), lambda net: [net(DEEP["x"])], -3.658945458, 1.598103707),
        (lambda: LogitEnsemble(2, 4, [6, 5], 7, 0.4), of_logits, 4.187199259, -0.191216065),
        (lambda: LogitEnsemble(2, 4, [6], 7), of_logits, -3.972813496, 0.401633481),
        (lambda: ObservationDecoder(4, {"v": (3, 2), "i": (2, 9, 13)}, [5]), of_decoder, -7.883946943, 8.511007655),
        (lambda: SpatialSoftmax((3, 4, 5), 2, 0.5, True, True), of_keypoints, 4.312428666, 0.024106958),
        (lambda: SpatialSoftmax((3, 4, 5), None, noise_std=0.1), of_keypoints, 4.185686179, 0.149265792),
        (lambda: AttentionPool((8, 2, 3), 4), lambda net: [net(waves(2, 8, 2, 3))], 0.642820518, -0.573271636),
        (lambda: QueryPool((3, 2, 3), 2, 8, 4), lambda net: [net(waves(2, 3, 2, 3))], 0.680361574, 1.543260089),
        (lambda: DenoisingMLP(3, 4, 5, **NARROW, num_blocks=2), of_denoiser, -3.345036312, -5.576261208),
        (lambda: ConditionalUnet1D(3, 5, **UNET, output_dim=2), of_denoiser, -4.197745157, -36.543094368),
        (lambda: ConditionalUnet1D(3, 5, **UNET, kernel_size=3, **SHIFTS), of_denoiser, -8.536950462, 16.720964435),
        (lambda: DiffusionTransformer(3, 4, 5, 2, **SMALL, output_dim=2), of_transformer, 13.100292969, 1.111901572),
        (lambda: DiffusionTransformer(3, 4, 5, 2, **SMALL, **SEES_ALL), of_transformer, -15.217235007, 0.965128422),
        (lambda: SubgoalNetwork(Joined(), {"a.b": (2, 3), "c": (4,)}, (8,)), of_values, 1.971176882, -0.432255679),
    ],
)  # fmt: skip
def test_networks_from_a_seed_and_with_known_weights(make, outputs, at_first, then):
    torch.manual_seed(0)
    net = make().eval()
    assert projected(*net.state_dict().values()) == pytest.approx(at_first, rel=1e-4, abs=1e-5)
    with torch.no_grad():
        for number, weight in enumerate(net.parameters()):
            weight.copy_(0.5 * waves(*weight.shape, speed=1.0 + 0.1 * number))
        assert projected(*outputs(net)) == pytest.approx(then, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        (DenoisingMLP, [0, 512, 3, 64, 0.0, None]),
        (DiffusionTransformer, [8, 4, 256, 0.0, 0.3, True, 0, None]),
        (ConditionalUnet1D, [0, 256, (256, 512, 1024), 5, 8, True, None]),
        (SpatialSoftmax, [32, 1.0, False, False, 0.0]),
        (AttentionPool, [8]),
        (QueryPool, [4, 128, 8]),
        (GoalValue, [0, 2, True]),
        (BilinearValue, [0, 2, True]),
        (SubgoalValue, [2, True]),
        (GoalActor, [0]),
        (NoiseNetwork, [0.0]),
        (LogitEnsemble, [0.0]),
        (ObservationDecoder, [(256,)]),
    ],
)
def test_default_sizes(kind, defaults):
    parameters = inspect.signature(kind).parameters.values()
    assert [p.default for p in parameters if p.default is not p.empty] == defaults


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: head_dim(10, 3), "3 heads do not divide 10 features"),
        (lambda: sinusoidal_positions(3, 5), "5 features|even"),
        (lambda: rotary_table(3, 5), "5 features|even"),
        (lambda: SinusoidalEmbedding(2), "2 features|even number from 4"),
        (lambda: SinusoidalEmbedding(5), "5 features|even number from 4"),
        (lambda: AttentionPool((6, 2, 2), 4), "num_heads is 4|6 channels"),
        (lambda: QueryPool((6, 2, 2), query_dim=6, num_heads=4), "num_heads is 4|query_dim 6"),
        (lambda: ConditionalUnet1D(3, down_dims=[]), "down_dims is empty"),
        (lambda: ConditionalUnet1D(3, kernel_size=4), "kernel_size is 4|odd"),
        (lambda: ConditionalUnet1D(3, down_dims=[8, 12]), "n_groups is 8|12 of down_dims"),
        (lambda: ConditionalUnet1D(3, down_dims=[12], n_groups=4), "begins with 12|multiple of 8"),
        (lambda: ConditionalUnet1D(3, down_dims=[8, 8, 8]).check_horizon(7), "2 times|multiple of 4 (nearest 8)"),
        (lambda: ConditionalUnet1D(3, down_dims=[8, 8, 8]).check_horizon(1), "nearest 4"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(make, words):
    with refused(words, error=ConfigError):
        make()


def test_positions_and_masks_by_hand():
    assert head_dim(12, 3) == 4
    slow = math.exp(-math.log(10000.0) / 2)  # of features 2 and 3 of 4
    angles = torch.tensor([[0.0, 0.0], [1.0, slow], [2.0, 2 * slow]])
    positions = sinusoidal_positions(3, 4)
    torch.testing.assert_close(positions[:, 0::2], angles.sin())
    torch.testing.assert_close(positions[:, 1::2], angles.cos())
    table = rotary_table(3, 4)
    torch.testing.assert_close(table, torch.stack([angles.cos(), angles.sin()]))
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).expand(3, 4)
    c, s = angles.cos(), angles.sin()
    first, second = x.chunk(2, -1)
    turned = torch.cat([first * c - second * s, first * s + second * c], -1)
    torch.testing.assert_close(rotate(x, table), turned)
    mask = causal_mask(4, 2)
    assert mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


def test_atoms_and_symlogs_by_hand():
    x = torch.tensor([-math.e + 1.0, 0.0, math.e - 1.0])
    torch.testing.assert_close(symlog(x), torch.tensor([-1.0, 0.0, 1.0]))
    torch.testing.assert_close(symexp(symlog(x)), x)
    atoms = Atoms(-2.0, 2.0, 5)
    assert atoms.values.tolist() == [-2.0, -1.0, 0.0, 1.0, 2.0]
    split = atoms.two_hot(symexp(torch.tensor([0.25, 9.0])))
    torch.testing.assert_close(split, torch.tensor([[0, 0, 0.75, 0.25, 0], [0, 0, 0, 0, 1.0]]))
    logits = torch.tensor([[-99.0, -99.0, -99.0, 0.0, 0.0]])
    torch.testing.assert_close(atoms.mean(logits), symexp(torch.tensor([1.5])))


def test_a_pool_by_its_name():
    pool, shape = make_pool(None, None, (3, 4, 5))
    assert shape == (3, 4, 5) and isinstance(pool, nn.Identity)
    pool, shape = make_pool("SpatialMeanPool", None, (3, 4, 5))
    assert shape == pool.output_shape((3, 4, 5)) == (3,)
    torch.testing.assert_close(pool(waves(2, 3, 4, 5)), waves(2, 3, 20).mean(-1))
    assert make_pool("SpatialSoftmax", {"num_kp": 7}, (3, 4, 5))[1] == (7, 2)
    assert make_pool("SpatialSoftmax", {"output_variance": True}, (3, 4, 5))[1] == (32, 5)
    assert make_pool("QueryPool", {"num_queries": 3}, (3, 4, 5))[1] == (3, 128)
    assert make_pool("AttentionPool", {"num_heads": 3}, (3, 4, 5))[1] == (3,)
