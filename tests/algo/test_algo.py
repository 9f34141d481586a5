"""The factory, third-party algorithms, precision."""

import sys
import tempfile
import uuid

import pytest
import torch

from imitate import algo_factory, load_config, register_algo_factory_func
from imitate.algo.base.factory import variant_of
from imitate.algo.bc import BC
from imitate.errors import ConfigError
from tests.tiny import tiny_algo

SHAPES = {"state": (2,)}
THIRD_PARTY = """
import torch
from torch import nn
from imitate import Algo, register_algo_factory_func
from imitate.algo.base.algo import PolicyStep


@register_algo_factory_func("{name}")
def algo_config_to_class(algo_config):
    return Constant, {{"value": algo_config.value}}


class Constant(Algo):
    def __init__(self, value, **kwargs):
        self.value = value
        super().__init__(**kwargs)

    def _create_networks(self):
        self.nets = nn.ModuleDict({{"policy": nn.Linear(1, 1)}})

    def _select_batch(self, batch):
        return batch

    def _loss(self, batch):
        loss = self.nets["policy"].weight.square().sum()
        return loss, {{"Loss": loss}}

    def _act(self, obs, state, goal, *, explore, generator):
        batch_size = next(iter(obs.values())).shape[0]
        return PolicyStep(torch.full((batch_size, self.ac_dim), self.value), state, {{}})
"""


def config_for(algo_name, algo=None, overrides=()):
    modalities = {"obs": {"low_dim": ["state"]}}
    tree = {"algo_name": algo_name, "algo": algo or {}, "observation": {"modalities": modalities}}
    return load_config(tree, overrides)


def test_a_third_party_algorithm_comes_through_an_entry_point(tmp_path, monkeypatch):
    name = f"constant_{uuid.uuid4().hex[:8]}"
    (tmp_path / f"{name}_package.py").write_text(THIRD_PARTY.format(name=name))
    info = tmp_path / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[imitate.algos]\n{name} = {name}_package\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    algo = algo_factory(name, config_for(name, {"value": 0.25}), SHAPES, 3, "cpu")
    assert algo.get_action({"state": torch.zeros(2, 2)}).tolist() == [[0.25] * 3] * 2


def test_a_name_is_registered_once():
    name = f"twice_{uuid.uuid4().hex[:8]}"
    register_algo_factory_func(name)(lambda algo_config: (BC, {}))
    with pytest.raises(ConfigError, match="already registered"):
        register_algo_factory_func(name)(lambda algo_config: (BC, {}))


def test_an_unknown_algorithm_names_the_nearest():
    with pytest.raises(ConfigError, match="bcc"):
        config_for("bcc")


def test_the_name_must_be_the_configurations():
    with pytest.raises(ConfigError, match="is for 'bc'"):
        algo_factory("iql", config_for("bc"), SHAPES, 2, "cpu")


def test_a_missing_shape_is_named():
    with pytest.raises(ConfigError, match="state"):
        algo_factory("bc", config_for("bc"), {"other": (2,)}, 2, "cpu")


def test_an_open_epoch_length_is_refused_outside_of_the_trainer():
    config = config_for("bc", overrides=("experiment.epoch_every_n_steps=null",))
    algo = algo_factory("bc", config, SHAPES, 2, "cpu")
    with pytest.raises(ConfigError, match="epoch_every_n_steps"):
        algo.serialize()


def one_update(overrides):
    torch.manual_seed(0)
    algo = algo_factory("bc", config_for("bc", {"actor_layer_dims": [64]}, overrides), SHAPES, 2)
    generator = torch.Generator().manual_seed(0)
    batch = {
        "obs": {"state": torch.randn(64, 1, 2, generator=generator)},
        "actions": torch.rand(64, 1, 2, generator=generator),
    }
    algo.set_train()
    info = algo.train_on_batch(algo.process_batch_for_training(batch), 1)
    return float(info["Loss"]), torch.cat([p.detach().flatten() for p in algo.nets.parameters()])


def test_bf16_computes_nearly_the_same_with_fp32_weights():
    loss, weights = one_update(("train.precision=fp32",))
    low_loss, low_weights = one_update(("train.precision=bf16",))
    assert low_weights.dtype == torch.float32
    assert low_loss != loss and low_loss == pytest.approx(loss, rel=0.02)
    torch.testing.assert_close(low_weights, weights, atol=5e-4, rtol=0)


@pytest.mark.nightly
def test_compiled_networks_compute_the_same_and_save_under_the_same_names(monkeypatch):
    loss, weights = one_update(())
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        # torch does not quote its folder for the compiler, and remembers the first one in the environment
        monkeypatch.setattr("tempfile.tempdir", "/tmp")
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", folder)
        compiled_loss, compiled_weights = one_update(("train.compile=true",))
    assert compiled_loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(compiled_weights, weights, atol=1e-6, rtol=1e-5)


def test_each_network_is_compiled_once_where_that_is_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr("shutil.which", lambda name: name)

    def compile_call(call, **how):
        asked.append((call.__self__, how))
        return call

    monkeypatch.setattr(torch, "compile", compile_call)
    for compiles in ("true", "false"):
        algo = tiny_algo("td3_bc", f"train.compile={compiles}")
        algo.set_train()
        algo.set_eval()
        algo.set_train()
        wanted = list(algo.nets.values()) if compiles == "true" else []
        assert asked == [(net, {"mode": "default"}) for net in wanted]
        asked.clear()


@pytest.mark.parametrize(
    ("name", "overrides", "variant"),
    [
        ("bc", ["algo.gaussian.enabled=true"], "bc_gaussian"),
        ("bc", [], "bc"),
        ("cql", [], "cql"),
        ("td3_bc", [], "td3_bc"),
    ],
)
def test_the_name_of_a_variant(name, overrides, variant):
    assert variant_of(tiny_algo(name, *overrides)) == variant
