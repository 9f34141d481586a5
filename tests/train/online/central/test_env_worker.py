"""An environment worker and a policy worker in one process."""

import numpy as np
import pytest

from imitate.train.online.central.env_worker import EnvPlan, EnvWork, Stalled, StepsWanted
from imitate.train.online.central.policy_worker import PolicyPlan, PolicyWork, Weights
from imitate.train.online.central.requests import PolicyChannel
from imitate.train.online.seats import Publisher

from ..test_teams import Walkers
from ..worlds import Line, make_algo

TOKEN = b"t" * 32


def quiet(call):
    """Reports to nobody."""


@pytest.fixture
def policies():
    """Makes policy workers; their addresses."""
    opened = []

    def make(algo, version=0):
        config = algo.global_config
        rebuilt = (config.algo_name, config.to_json(), algo.obs_key_shapes, algo.ac_dim)
        work = PolicyWork(PolicyPlan(rebuilt, "cpu", 0, TOKEN, "127.0.0.1"), quiet)
        opened.append(work)
        return work, work(Weights(0.0, Publisher(algo).newest(version, ()))).address

    yield make
    for work in opened:
        work.close()


def env_work(make=Line, lanes=((0,), (1,)), ring=1, **changes):
    settings = {
        "make": make,
        "lanes": np.array(lanes),
        "ring": ring,
        "group": {"seed": 3, "horizon": 5},
        "obs_keys": ("place",),
        "low": make.action_low,
        "high": make.action_high,
        "num_choices": 0,
        "mask_key": None,
        "seed": 0,
        "timeout_s": 600.0,
        "token": TOKEN,
    }
    return EnvWork(EnvPlan(**{**settings, **changes}), quiet)


def test_the_oldest_weights_behind_the_steps_count(policies):
    algo = make_algo()
    policy, address = policies(algo, version=3)
    work = env_work()
    assert [part.version for part in work(StepsWanted(2, False, address)).parts] == [3]
    policy(Weights(0.0, Publisher(algo).newest(5, ())))
    assert [part.version for part in work(StepsWanted(2, False, address)).parts] == [5]

    steps = 0

    def updated(call):
        nonlocal steps
        steps += call == ""
        if steps == 4:
            policy(Weights(0.0, Publisher(algo).newest(7, ())))

    work.beat = lambda: updated("")
    assert [part.version for part in work(StepsWanted(6, False, address)).parts] == [5]
    assert policy.policy.version == 7


def test_a_stalled_worker_goes_on_where_it_was(policies):
    algo = make_algo()
    _, address = policies(algo)
    expected = env_work(ring=2)(StepsWanted(6, False, address))

    first, broken = policies(algo)
    work, beats = env_work(ring=2), 0

    def lose():
        nonlocal beats
        beats += 1
        if beats == 6:
            first.close()

    work.beat = lose
    assert isinstance(work(StepsWanted(6, False, broken)), Stalled)
    assert 0 < sum([len(group.steps) for group in work.groups]) < 12
    assert isinstance(work(StepsWanted(6, False, broken, resumes=True)), Stalled)
    found = work(StepsWanted(6, False, address, resumes=True))
    for one, other in zip(found.parts, expected.parts, strict=True):
        assert one.lanes.tolist() == other.lanes.tolist() and len(one.steps) == 6
        for step, same in zip(one.steps, other.steps, strict=True):
            np.testing.assert_allclose(step.obs["place"], same.obs["place"], atol=1e-5)
            np.testing.assert_allclose(step.actions, same.actions, atol=1e-5)


def test_agents_of_one_simulator_stay_in_one_group(policies):
    _, address = policies(make_algo())
    work = env_work(Walkers, lanes=((0, 1), (2, 3), (4, 5)), ring=2)
    parts = work(StepsWanted(3, False, address)).parts
    assert [part.lanes.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5]]
    assert all(part.steps[0].actions.shape == (len(part.lanes), 1) for part in parts)


def test_random_choices_are_among_the_allowed_ones():
    class Masked(Line):
        def obs(self):
            return {"place": np.array([0.0]), "allowed": np.array([0.0, 1.0, 0.0, 1.0])}

    work = env_work(
        Masked,
        low=np.zeros(4),
        high=np.ones(4),
        num_choices=4,
        mask_key="allowed",
        lanes=np.arange(100)[:, None],
    )
    (group,) = work.groups
    group.request()
    actions = group.random_actions()
    assert (actions.sum(1) == 1).all() and actions.sum(0)[[0, 2]].tolist() == [0, 0]
    assert 20 < actions.sum(0)[1] < 80
    assert np.array_equal(group.random_actions(), actions)


def test_random_actions_lie_within_limits():
    work = env_work(low=np.array([-2.0, 3.0, -np.inf]), high=np.array([-1.0, 5.0, np.inf]))
    (group,) = work.groups
    group.request()
    actions = np.concatenate([group.random_actions() for group.envs.lengths[:] in range(50)])
    assert actions.dtype == np.float32
    assert (actions.min(0) >= [-2.0, 3.0, -1.0]).all() and (actions.max(0) <= [-1, 5, 1]).all()
    assert (np.ptp(actions, axis=0) > [0.8, 1.6, 1.6]).all()


def test_random_steps_are_taken_without_the_policy_and_it_begins_anew(policies, monkeypatch):
    _, address = policies(make_algo(), version=3)
    asked, ask = [], PolicyChannel.ask

    def noted(own, request):
        asked.extend(request.get("fresh", ()))
        ask(own, request)

    monkeypatch.setattr(PolicyChannel, "ask", noted)
    work = env_work()
    (part,) = work(StepsWanted(2, True, address, unasked=4)).parts
    assert (len(part.steps), part.version, asked) == (2, 4, [])
    work(StepsWanted(1, False, address))
    assert asked == [True, True]
