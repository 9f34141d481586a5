"""A policy that acts for several groups of environments at once."""

import numpy as np
import pytest
import torch

from imitate.train.online.central import policy_worker
from imitate.train.online.central.policy_worker import BatchedPolicy, PolicyPlan, Weights
from imitate.train.online.seats import Publisher

from ..worlds import make_algo

MEMORY = {"rnn": {"enabled": True, "hidden_dim": 4}, "actor": {"layer_dims": [8]}}


def batched(algo, seed=0):
    config = algo.global_config
    plan = PolicyPlan(
        (config.algo_name, config.to_json(), algo.obs_key_shapes, algo.ac_dim),
        "cpu",
        seed,
        b"",
        "127.0.0.1",
    )
    policy = BatchedPolicy(plan)
    policy.load(Weights(0.5, Publisher(algo).newest(7, ())))
    return policy


def request(lanes, step=0, state=None, fresh=False):
    lanes = np.array(lanes)
    return {
        "obs": {"place": lanes[:, None].astype(np.float32)},
        "fresh": np.full(len(lanes), fresh),
        "clock": np.stack([lanes, np.ones_like(lanes), np.full_like(lanes, step)], axis=1),
        "state": state or {},
    }


def assert_trees_close(first, second):
    assert first.keys() == second.keys()
    for key, value in first.items():
        if isinstance(value, dict):
            assert_trees_close(value, second[key])
        else:
            np.testing.assert_allclose(value, second[key], atol=1e-5, err_msg=key)


@pytest.mark.parametrize(
    ("name", "section"),
    [("sac", {}), ("td3", {}), ("ppo", {}), ("sac", MEMORY), ("ppo", {"rnn": MEMORY["rnn"]})],
    ids=["sac", "td3", "ppo", "recurrent sac", "recurrent ppo"],
)
def test_answers_do_not_depend_on_what_is_asked_beside(name, section):
    policy = batched(make_algo(name, algo=section))
    state_a = state_b = None
    for step in range(3):
        first, second = request([0, 1], step, state_a), request([5], step, state_b)
        together = policy([first, second])
        alone = [policy([first])[0], policy([second])[0]]
        for one, other in zip(together, alone, strict=True):
            assert one.pop("version") == other.pop("version") == 7
            assert_trees_close(one, other)
        state_a, state_b = (answer["state"] for answer in together)


def test_noise_depends_on_seed_environment_episode_and_step():
    algo = make_algo("td3")
    policy = batched(algo)

    def noise(asked, of=policy):
        (answer,) = of([asked])
        return float(answer["state"]["policy"]["noise"][0, 0])

    asked = request([0])
    other_episode = {**asked, "clock": asked["clock"] + [[0, 1, 0]]}
    values = [noise(asked), noise(request([1])), noise(request([0], 1)), noise(other_episode)]
    values.append(noise(asked, batched(algo, seed=1)))
    assert len({round(value, 5) for value in values}) == 5
    assert noise(asked) == values[0]


def test_a_state_begins_anew_where_an_episode_does():
    policy = batched(make_algo(algo=MEMORY))
    (first,) = policy([request([0, 1])])
    (going,) = policy([request([0, 1], 1, first["state"])])
    fresh = request([0, 1], 1, first["state"])
    fresh["fresh"][0] = True
    (begun,) = policy([fresh])
    (new,) = policy([request([0, 1], 1)])
    np.testing.assert_allclose(begun["actions"][0], new["actions"][0], atol=1e-6)
    np.testing.assert_allclose(begun["actions"][1], going["actions"][1], atol=1e-6)
    assert not np.allclose(new["actions"], going["actions"], atol=1e-4)


def test_progress_and_weights_arrive():
    algo = make_algo("td3", algo={"exploration": {"std": {"schedule": [[0, 1.0], [1, 0.0]]}}})
    policy = batched(algo)
    policy.load(Weights(1.0, Publisher(algo).newest(8, ())))
    (answer,) = policy([request([0])])
    assert answer["version"] == 8 and not answer["state"]["policy"]["noise"].any()
    with torch.no_grad():
        algo.nets["actor"].requires_grad_(False)
        for weight in algo.nets["actor"].parameters():
            weight.zero_()
    policy.load(Weights(1.0, Publisher(algo).newest(9, ())))
    (answer,) = policy([request([0, 3])])
    assert not answer["actions"].any()


@pytest.mark.parametrize(
    ("wanted", "gpus", "found"),
    [
        ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda"),
        ("cuda:1", 2, "cuda:1"),
        ("cuda:1", 1, "cuda"),
        ("cuda:1", 0, "cpu"),
    ],
)
def test_it_acts_on_the_gpu_that_learns_where_the_machine_has_one(monkeypatch, wanted, gpus, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert policy_worker.device_here(wanted) == found
