"""A policy that acts for several groups of environments at once."""

import queue
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from imitate.system.processes import MAKE
from imitate.train.online.central import policy_worker
from imitate.train.online.central.policy_worker import (
    BatchedPolicy,
    PolicyPlan,
    PolicyWork,
    Status,
    Weights,
)
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


class Server:
    """A server whose requests are given."""

    def __init__(self, host, token):
        self.given, self.address = (host, token), ("here", 1)
        self.events, self.most, self.answers, self.closed = queue.Queue(), set(), [], 0

    def wake(self):
        self.events.put([])

    def requests(self, most):
        self.most.add(most)
        return self.events.get(timeout=60)

    def answer(self, request, content):
        self.answers.append((request, content))

    def close(self):
        self.closed += 1


class Policy:
    """Answers a list of numbers with as many actions, and fails at 0."""

    def __init__(self, plan):
        self.plan, self.loaded = plan, []

    def load(self, item):
        if item == "broken":
            raise ValueError("weights of another net")
        self.loaded.append(item)

    def __call__(self, requests):
        if 0 in requests:
            raise KeyError("place\nand more")
        return [{"actions": [1.0] * number} for number in requests]


def test_requests_are_answered_and_counted(monkeypatch):
    monkeypatch.setattr(policy_worker, "RequestServer", Server)
    monkeypatch.setattr(policy_worker, "BatchedPolicy", Policy)
    calls, threads = [], torch.get_num_threads()
    work = PolicyWork(PolicyPlan((), "cpu", 0, b"t", "127.0.0.1"), calls.append)
    server = work.server
    assert calls == [MAKE, ""] and server.given == ("127.0.0.1", b"t")
    assert work.thread.daemon and work("weights") == Status(("here", 1), 0, 0)
    for numbers in ([2, 3], [4], [1, 0]):
        server.events.put([SimpleNamespace(content=number) for number in numbers])
    assert work(None) == Status(("here", 1), 3, 9)
    assert work.policy.loaded == ["weights", None] and server.most == {256}
    answers = [(request.content, answer) for request, answer in server.answers]
    error = {"error": "KeyError: 'place\\nand more'"}
    assert answers == [
        *((number, {"actions": [1.0] * number}) for number in (2, 3, 4)),
        *((1, error), (0, error)),
    ]
    with pytest.raises(ValueError, match="weights of another net"):
        work("broken")
    work.close()
    work.close()
    assert server.closed == 1 and not work.thread.is_alive()
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("host", "family"), [("10.0.0.1", "v4"), ("fe80::1", "v6")])
def test_the_address_towards_another_machine(monkeypatch, host, family):
    made = []

    class Socket:
        def __init__(self, *kind):
            made.append(kind)

        def __enter__(self):
            return self

        def __exit__(self, *raised):
            made.append("closed")

        def connect(self, address):
            made.append(address)

        def getsockname(self):
            return "10.0.0.9", 7

    parts = SimpleNamespace(AF_INET="v4", AF_INET6="v6", SOCK_DGRAM="udp", socket=Socket)
    monkeypatch.setattr(policy_worker, "socket", parts)
    assert policy_worker.address_towards(host) == "10.0.0.9"
    assert made == [(family, "udp"), (host, 9), "closed"]


def mixed(bits):
    """SplitMix64's mixing of a number, with Python's integers."""
    mask = 2**64 - 1
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & mask
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & mask
    return bits ^ bits >> 31


def test_seeds_of_the_noise():
    seeds = policy_worker.noise_seeds(5, torch.tensor([[1, 2, 3], [0, 0, 0]]))
    wanted = [mixed(mixed(mixed(5) + 1) + 2) + 3, mixed(mixed(mixed(5)))]
    assert [seed % 2**64 for seed in seeds.tolist()] == [seed % 2**64 for seed in wanted]
    assert seeds.dtype == torch.int64


def test_a_policy_that_acts_has_no_second_weights():
    algo = make_algo("diffusion_policy", algo={"ema": {"enabled": True}})
    config = algo.global_config
    built = (config.algo_name, config.to_json(), algo.obs_key_shapes, algo.ac_dim)
    policy = BatchedPolicy(PolicyPlan(built, "cpu", 0, b"", ""))
    assert algo.ema is not None and policy.algo.ema is None
    assert policy.version == -1 and not policy.algo.nets.training
    policy.load(None)
    assert policy.version == -1
