"""Networks of the user in place of an encoder, an actor's layers or critics, `algo.networks`, and their door."""

import sys
import types

import pytest
import torch
from torch import nn

from imitate import policy_from_checkpoint
from imitate.algo.base.own_networks import OwnCritics, OwnEncoder
from imitate.errors import ConfigError, EnvError, UserError
from imitate.evaluate.environments import check_named, trust_named, untrusted_in
from imitate.system.trust import VARIABLE, trust
from tests.tiny import tiny_algo, tiny_batch, tiny_checkpoint, tiny_config

NAMES = ("own_nets:trunk", "own_nets:critic", "own_nets:shape", "own_nets:number")
OBS = {"s": 2, "t": (1,)}


class Sum(nn.Module):
    """Sums of the observations' numbers and of the action's, times a weight, in some columns."""

    def __init__(self, columns, weight=2.0):
        super().__init__()
        self.columns, self.weight = columns, nn.Parameter(torch.tensor(weight))

    def forward(self, obs, actions=None):
        total = sum(value.flatten(1).sum(-1) for value in obs.values())
        total = total if actions is None else total + 10 * actions.sum(-1)
        return self.weight * (total[:, None].expand(-1, self.columns) if self.columns else total)


@pytest.fixture(autouse=True)
def own_nets(monkeypatch):
    """A module of the user, of which nothing is trusted; what its functions were called with."""
    module, calls = types.ModuleType("own_nets"), []
    module.trunk = lambda shapes, ac_dim: calls.append((shapes, ac_dim)) or Sum(3)
    module.critic = lambda shapes, ac_dim: Sum(0, weight=float(len(calls) + 1))
    module.shape = lambda shapes, ac_dim: Sum(0)
    module.number = lambda shapes, ac_dim: 5
    monkeypatch.setitem(sys.modules, "own_nets", module)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    return calls


def own(**names):
    return {"networks": {place: f"own_nets:{name}" for place, name in names.items()}}


@pytest.mark.parametrize(("algo_name", "more"), [
    ("bc", []), ("bc", ["train.frame_stack=2"]), ("ppo", []), ("dqn", []), ("flow_policy", []), ("iql", []),
])  # fmt: skip
def test_an_encoder_sees_the_observations_of_each_algorithm(algo_name, more, own_nets):
    trust(*NAMES)
    algo = tiny_algo(algo_name, *more, obs=OBS, action=2, algo=own(encoder="trunk"))
    assert own_nets and all(call == ({"s": (2,), "t": (1,)}, 2) for call in own_nets)
    encoders = [net for net in algo.nets.modules() if isinstance(net, OwnEncoder)]
    assert {net.output_dim for net in encoders} == {3}
    weight = next(iter(encoders)).net.weight
    batch = algo.process_batch_for_training(tiny_batch(algo)) if algo_name != "ppo" else None
    if batch is not None:
        algo.train_on_batch(batch, 1)
        assert weight.item() != 2.0
    obs = {"s": torch.ones(4, 2), "t": torch.ones(4, 1)}
    assert algo.act(obs, algo.initial_state(4)).action.shape == (4, 2)


def test_an_actors_layers_are_under_the_head_of_the_algorithm():
    trust(*NAMES)
    algo = tiny_algo("td3", obs=OBS, algo=own(actor="trunk", critic="critic"))
    features, _ = algo.actor({"s": torch.tensor([[1.0, 2.0]]), "t": torch.tensor([[4.0]])})
    assert features.tolist() == [[14.0] * 3]
    linear = algo.actor.head.action
    assert linear.weight.shape == (1, 3)
    info = algo.train_on_batch(algo.process_batch_for_training(tiny_batch(algo)), 1)
    assert info["Critic_Grad_Norms"] > 0 and "critic_target" in algo.nets


def test_critics_get_each_of_several_actions_with_its_state():
    critics = OwnCritics([Sum(0, 1.0), Sum(0, 2.0)], {"s": (2,)})
    obs = {"s": torch.tensor([[1.0, 0.0], [2.0, 1.0]])}
    actions = torch.tensor([[0.1], [0.2]])
    assert critics(obs, actions).tolist() == [[2.0, 5.0], [4.0, 10.0]]
    several = torch.tensor([[[0.0], [0.1], [0.2]], [[0.0], [0.3], [0.4]]])
    assert critics(obs, several)[0].tolist() == [[1.0, 2.0, 3.0], [3.0, 6.0, 7.0]]


@pytest.mark.parametrize(("algo_name", "more", "networks", "words"), [
    ("bc", [], {"critic": "critic"}, "algo.networks.critic: bc cannot use this network here: name an encoder"),
    ("dqn", [], {"critic": "critic"}, "algo.networks.critic: dqn cannot use this"),
    ("td3", ["algo.critic.value_bounds=[0,1]"], {"critic": "critic"}, "td3 cannot use this network here"),
    ("sac", ["algo.rnn.enabled=true", "train.seq_length=4"], {"actor": "trunk"}, "sac cannot use this network here"),
    ("hbc", [], {"encoder": "trunk"}, "algo.networks.encoder: hbc cannot use this network here: leave it out"),
    ("act", [], {"encoder": "trunk"}, "algo.networks.encoder: act reads tokens"),
    ("bc", [], {"encoder": "nothing"}, "'own_nets:nothing' cannot be loaded"),
    ("bc", [], {"encoder": "number"}, "'own_nets:number' returned int: return an nn.Module"),
    ("bc", [], {"encoder": "shape"}, r"returned \(2,\) for two observations: return features"),
])  # fmt: skip
def test_what_has_no_place_or_another_form_is_refused(algo_name, more, networks, words):
    trust(*NAMES, "own_nets:nothing")
    with pytest.raises(ConfigError, match=words):
        tiny_algo(algo_name, *more, obs=OBS, algo=own(**networks))


def test_a_checkpoint_names_the_networks_and_loads_them_only_if_they_are_trusted(
    tmp_path, monkeypatch, own_nets
):
    sections = {"algo": own(actor="trunk", critic="critic"), "obs": OBS}
    config = tiny_config("td3", **sections)
    assert [named.name for named in untrusted_in(config)] == ["own_nets:trunk", "own_nets:critic"]
    trust_named(config)  # the user names the configuration
    path = tiny_checkpoint(tmp_path / "own.pth", "td3", **sections)
    obs = {"s": [0.1, 0.2], "t": [0.3]}
    first = policy_from_checkpoint(ckpt_path=path)[0](obs)
    monkeypatch.setenv(VARIABLE, "own_nets")
    own_nets.clear()
    for opened in (lambda: policy_from_checkpoint(ckpt_path=path), lambda: check_named(config)):
        with pytest.raises(UserError, match="--trust own_nets:trunk --trust own_nets:critic"):
            opened()
    assert own_nets == []
    trust(*NAMES)
    assert policy_from_checkpoint(ckpt_path=path)[0](obs) == pytest.approx(first, abs=0)


def test_a_part_of_a_hierarchy_has_networks_of_its_own():
    config = tiny_config("hbc", obs=OBS, algo={"planner": own(encoder="trunk")})
    assert [named.name for named in untrusted_in(config)] == ["own_nets:trunk"]
    with pytest.raises(EnvError, match="the network 'own_nets:trunk' in algo.networks.encoder"):
        tiny_algo("hbc", obs=OBS, algo={"planner": own(encoder="trunk")})
    with pytest.raises(ConfigError, match="networks.encoder"):
        tiny_config("bc", algo={"networks": {"encoder": "no module"}})
