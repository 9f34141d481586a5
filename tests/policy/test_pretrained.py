"""Policies on pretrained trunks: fresh ones read the weights, checkpoints bring them."""

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.resnet import ResNet18Conv
from imitate.policy.checkpoint import algo_from_checkpoint, checkpoint_dict
from tests.tiny import tiny_algo

SHAPES = {"camera": (3, 40, 40), "pos": (3,)}


def make(path, ema, **trunk):
    rgb = {} if path is None else {"pretrained": str(path), **trunk}
    encoder = {"rgb": {"core_kwargs": {"backbone_kwargs": rgb}}}
    section = {"ema": {"enabled": ema}}
    return tiny_algo(obs=SHAPES, action=4, algo=section, observation={"encoder": encoder})


def trunk_of(algo):
    return next(m for m in algo.nets.modules() if isinstance(m, ResNet18Conv))


FROZEN = {"freeze": True}, [1e-4], False
SLOW = {"lr_scale": 0.1}, [1e-4, 1e-5], True
PLAIN = {}, [1e-4], True
TWINS = [(*FROZEN, True), (*SLOW, False), (*PLAIN, False), (*PLAIN, True)]


@pytest.mark.parametrize(
    ("trunk", "rates", "moves", "ema"),
    [
        (*FROZEN, False),
        (*SLOW, True),
        *(pytest.param(*twin, marks=pytest.mark.nightly) for twin in TWINS),
    ],
)
def test_a_policy_on_a_pretrained_trunk(tmp_path, ema, trunk, rates, moves):
    torch.manual_seed(0)
    path = tmp_path / "w.pth"
    weights = ResNet18Conv().state_dict()
    torch.save(weights, path)
    algo = make(path, ema, **trunk)
    assert torch.equal(trunk_of(algo).layer4[1].conv2.weight, weights["layer4.1.conv2.weight"])
    algo.set_train()
    raw = {
        "obs": {"pos": torch.rand(2, 1, 3), "camera": torch.randint(255, (2, 1, 40, 40, 3)).byte()},
        "actions": torch.rand(2, 1, 4),
    }
    for _ in range(2):
        algo.train_on_batch(algo.process_batch_for_training(raw), 1)
    moved = not torch.equal(trunk_of(algo).conv1.weight, weights["conv1.weight"])
    assert moved is moves
    assert [g["lr"] for g in algo.optimizers["policy"].param_groups] == pytest.approx(rates)
    # With an average of weights, the statistics of BatchNorm stay those of the file.
    kept = torch.equal(trunk_of(algo).bn1.running_mean, weights["bn1.running_mean"])
    assert kept is (ema or not moves)

    path.unlink()
    again = algo_from_checkpoint(
        checkpoint_dict(algo, env_metadata={}, shape_metadata={}), load_optimizers=True
    )
    obs = {key: torch.rand(2, *shape) for key, shape in SHAPES.items()}
    actions = []
    for policy in (algo, again):
        policy.set_eval()
        actions.append(policy.act(obs, policy.initial_state(2)).action)
    assert torch.equal(*actions)
    with pytest.raises(ConfigError, match="there is no file"):
        make(path, ema)
