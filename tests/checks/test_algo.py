"""Each contract, kept by what we ship and broken by an algorithm or an environment made for it."""

import itertools
import re

import gymnasium
import numpy as np
import pytest
import torch

from imitate import load_config
from imitate.algo.base.entropy import SACConfig
from imitate.algo.base.factory import register_algo_factory_func
from imitate.algo.sac import SAC
from imitate.checks import algo as algo_checks
from imitate.checks.algo import check_algo
from imitate.checks.learning_and_acting import NAMED, follows, shortened
from imitate.train.setup import resolve
from tests.tiny import tiny_tree

COUNTER = itertools.count()


class FaultyConfig(SACConfig):
    fault: str = "none"


class NanActions(SAC):
    def _act(self, obs, state, goal, *, explore, generator):
        step = super()._act(obs, state, goal, explore=explore, generator=generator)
        return step if explore else step._replace(action=step.action * float("nan"))


class Squeezed(SAC):
    def _act(self, obs, state, goal, *, explore, generator):
        step = super()._act(obs, state, goal, explore=explore, generator=generator)
        return step if explore else step._replace(action=step.action.squeeze(-1))


class Moody(SAC):
    def _act(self, obs, state, goal, *, explore, generator):
        step = super()._act(obs, state, goal, explore=explore, generator=generator)
        return step._replace(action=step.action + 0.01 * next(COUNTER))


class NanLoss(SAC):
    def _actor_loss(self, batch):
        loss, info = super()._actor_loss(batch)
        return loss, {**info, "Extra": loss / 0.0 * 0.0}


class Unused(SAC):
    def _create_networks(self):
        super()._create_networks()
        self.nets["actor"].spare = torch.nn.Linear(1, 1)


class Still(SAC):
    def _gradient_step(self, name, loss):
        if name == "actor":
            for group in self.optimizers["actor"].param_groups:
                group["lr"] = 0.0
        return super()._gradient_step(name, loss)


class WildTarget(SAC):
    def _follow(self, *names):
        super()._follow(*names)
        with torch.no_grad():
            for weight in self.nets["critic_target"].parameters():
                weight.add_(0.01 * torch.randn_like(weight))


class StillTarget(SAC):
    def _follow(self, *names):
        pass


class Forgetful(SAC):
    offset = 0.0

    def train_on_batch(self, batch, epoch, validate=False):
        self.offset = 0.5
        return super().train_on_batch(batch, epoch, validate)

    def _act(self, obs, state, goal, *, explore, generator):
        step = super()._act(obs, state, goal, explore=explore, generator=generator)
        return step._replace(action=step.action * 0.5 + self.offset)


class Ends(SAC):
    """Fails at the end of an epoch."""

    def on_epoch_end(self, epoch):
        raise RuntimeError("no end")


class OneWay(SAC):
    """Cannot be resumed."""

    def deserialize(self, model_dict, load_optimizers=True):
        if load_optimizers and self.optimizers["actor"].state_dict()["state"] == {}:
            raise KeyError("no way back")
        super().deserialize(model_dict, load_optimizers)


FAULTS = {
    "none": SAC,
    "nan": NanActions,
    "squeezed": Squeezed,
    "moody": Moody,
    "nan_loss": NanLoss,
    "unused": Unused,
    "still": Still,
    "wild": WildTarget,
    "still_target": StillTarget,
    "forgetful": Forgetful,
    "ends": Ends,
    "one_way": OneWay,
}


@register_algo_factory_func("faulty_for_check", section=FaultyConfig)
def algo_config_to_class(algo_config):
    return FAULTS[algo_config.fault], {}


class Sick(gymnasium.Env):
    """Healthy for ``steps`` steps; at the seeds ``dies_at`` it cannot begin."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode=None, seeded=True, dies_at=(), dies_after=None):
        self.render_mode, self.seeded, self.dies_at = render_mode, seeded, dies_at
        self.dies_after, self.steps = dies_after, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed in self.dies_at:
            raise RuntimeError("will not begin")
        self.length = 0
        return self.draw(), {}

    def step(self, action):
        self.steps += 1
        self.length += 1
        if self.dies_after is not None and self.length > self.dies_after:
            raise RuntimeError("fell over")
        return self.draw(), 1.0, False, self.length == 20, {}

    def draw(self):
        rng = self.np_random if self.seeded else np.random.default_rng()
        return rng.uniform(-1, 1, 2).astype(np.float32)


gymnasium.register("ImitateSick-v0", entry_point=Sick)


def findings(fault="none", name="faulty_for_check", env=None, **more):
    world = {"env_name": "ImitateSick-v0", "type": 2, "env_kwargs": env or {}}
    tree = tiny_tree(
        name,
        obs={"flat": 2},
        hidden=[8],
        algo={"fault": fault} if name == "faulty_for_check" else {},
        train={"num_epochs": 5, "online": {"enabled": True, "env": world}},
        experiment={"epoch_every_n_steps": 1000, "rollout": {"enabled": True, "horizon": 200}},
    )
    found = check_algo(resolve(load_config(tree | more), None, None))
    return {finding.name: finding for finding in found}


def verdicts(found):
    return {name: finding.verdict for name, finding in found.items()}


def test_all_hold():
    found = findings()
    assert set(verdicts(found).values()) == {"ok"}
    assert list(found) == [
        *("environment", "observations", "networks", "steps", "actions", "loss", "gradients"),
        *("weights", "targets", "checkpoint", "training", "resume", "evaluation"),
    ]
    assert found["resume"].words == "from step 60 to 120"
    assert found["targets"].words == "critic_target: follows its online network"


@pytest.fixture
def short(monkeypatch):
    """Epochs and episodes of some steps."""
    monkeypatch.setattr(algo_checks, "EPOCH_STEPS", 16)
    limits = dict.fromkeys(("experiment.rollout.horizon", "train.online.horizon"), 20)
    few = {**limits, "train.online.warmup_steps": 8, "train.online.collect_steps": 4}
    for path, most in few.items():
        monkeypatch.setitem(algo_checks.LIMITS, path, most)


@pytest.mark.parametrize(
    ("fault", "contract", "words"),
    [
        ("nan", "actions", "not finite"),
        ("squeezed", "actions", r"shape \(3,\)"),
        ("moody", "actions", "acting must not change"),
        ("nan_loss", "loss", "Extra is"),
        ("unused", "gradients", r"actor.spare.weight, actor.spare.bias"),
        ("still", "weights", "actor.* do not change"),
        ("wild", "targets", "critic_target changes, but not towards"),
        ("still_target", "targets", "critic_target never changes in 8 updates"),
        ("forgetful", "checkpoint", "acts differently"),
        ("ends", "training", "RuntimeError: no end"),
        ("one_way", "resume", "KeyError: 'no way back'"),
    ],
)
def test_a_broken_algorithm(short, fault, contract, words):
    found = findings(fault)
    broken = {name for name, verdict in verdicts(found).items() if verdict == "error"}
    assert contract in broken, verdicts(found)
    assert re.search(words, found[contract].words), found[contract].words
    assert broken == {contract}  # what is built upon it is not tried


@pytest.mark.parametrize(
    ("env", "contract", "words"),
    [
        ({"seeded": False}, "environment", "seeding"),
        ({"dies_at": [100000, 100001]}, "evaluation", "will not begin"),
        ({"dies_after": 5}, "steps", "fell over"),
    ],
)
def test_a_broken_environment(env, contract, words):
    found = findings(env=env)
    assert found[contract].verdict == "error" and words in found[contract].words


def test_what_is_built_upon_something_broken_is_not_tried():
    found = findings(observation={"modalities": {"obs": {"low_dim": ["flaat"]}}})
    assert found["observations"].verdict == "error" and "flaat" in found["observations"].words
    assert found["networks"].verdict == found["evaluation"].verdict == "untried"
    assert found["networks"].words == "because of 'observations'"


@pytest.mark.parametrize(
    ("old", "new", "online", "right"),
    [
        ((0, 0), (0.1, 0), (1, 0), True),
        ((0, 0), (1, 0), (1, 0), True),
        ((0, 0), (0, 0), (1, 0), True),  # the update may come later
        ((0, 0), (1.1, 0), (1, 0), False),  # beyond it
        ((0, 0), (-0.1, 0), (1, 0), False),
        ((0, 0), (0.1, 0.0049), (1, 0), True),
        ((0, 0), (0.1, 0.0051), (1, 0), False),  # aside
        ((3, 4), (4, 4), (3, 4), False),  # there is no way to go
        ((1e6, 0), (1e6, 0.9), (1e6 + 1, 0), True),  # float32 rounds by as much
        ((1e6, 0), (1e6, 1.2), (1e6 + 1, 0), False),
    ],
)
def test_following_is_going_a_part_of_the_way(old, new, online, right):
    vectors = [torch.tensor(x, dtype=torch.float64) for x in (old, new, online)]
    assert follows(*vectors) == right


@pytest.mark.parametrize("more", [0, 1])
def test_only_some_names_are_listed(more):
    names = [f"n{number}" for number in range(NAMED + more)]
    wanted = ", ".join(names[:NAMED]) + (f" and {more} more" if more else "")
    assert shortened(names) == wanted
