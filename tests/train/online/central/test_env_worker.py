"""An environment worker and a policy worker in one process."""

import numpy as np
import pytest

from imitate.errors import EnvError, WireError
from imitate.train.online.central import env_worker
from imitate.train.online.central.env_worker import EnvPlan, EnvWork, Stalled, StepsWanted
from imitate.train.online.central.policy_worker import PolicyPlan, PolicyWork, Weights
from imitate.train.online.central.requests import PolicyChannel
from imitate.train.online.seats import Publisher
from tests.refusals import refused

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


# ---- with a policy worker whose answers are given ---------------------------------------------------


class Channel:
    """A connection that answers each request with actions 3, which the environment clips to 2."""

    made = ()

    def __init__(self, address, token, beat, timeout_s):
        self.address, self.given, self.asked, self.closed = address, (token, timeout_s), [], 0
        self.fails_at = self.error = None
        Channel.made += (self,)

    def ask(self, request):
        if len(self.asked) == self.fails_at:
            raise WireError("gone")
        self.asked.append({**request, "fresh": request["fresh"].tolist()})

    def answer(self):
        if self.error is not None:
            return {"error": self.error}
        lanes = len(self.asked[0]["fresh"])
        number = len(self.asked)
        return {
            "actions": np.full((lanes, 1), 3.0),
            "extras": {"log_prob": np.full(lanes, float(number))},
            "state": {"n": number},
            "version": 10 - number,
        }

    def close(self):
        self.closed += 1


@pytest.fixture
def channels(monkeypatch):
    Channel.made = ()
    monkeypatch.setattr(env_worker, "PolicyChannel", Channel)
    return Channel


HERE, THERE = ("here", 1), ("there", 2)


def test_what_a_policy_worker_is_asked_and_what_becomes_of_its_answers(channels):
    work = env_work(timeout_s=9.0)
    (part,) = work(StepsWanted(3, False, HERE)).parts
    (channel,) = channels.made
    assert (channel.address, channel.given) == (HERE, (TOKEN, 9.0))
    first, second, third = channel.asked
    assert [asked["fresh"] for asked in channel.asked] == [[True, True], *[[False, False]] * 2]
    assert [asked["state"] for asked in channel.asked] == [{}, {"n": 1}, {"n": 2}]
    clocks = [[[0, 1, n], [1, 1, n]] for n in range(3)]
    assert [asked["clock"].tolist() for asked in channel.asked] == clocks
    assert list(first["obs"]) == ["place"]
    moved = [asked["obs"]["place"] - first["obs"]["place"] for asked in (second, third)]
    assert [rows.tolist() for rows in moved] == [[[2.0]] * 2, [[4.0]] * 2]
    assert (part.version, part.lanes.tolist(), part.messages) == (7, [0, 1], ())
    assert [step.actions.tolist() for step in part.steps] == [[[2.0]] * 2] * 3
    assert [step.extras["log_prob"].tolist() for step in part.steps] == [[n, n] for n in (1, 2, 3)]
    assert part.episodes == []
    # the next request continues, on the same connection
    answer = work(StepsWanted(3, False, HERE))
    (part,) = answer.parts
    assert len(channels.made) == 1 and len(channel.asked) == 6 and len(part.steps) == 3
    assert [episode.length for episode in part.episodes] == [5, 5]
    assert [asked["fresh"] for asked in channel.asked[3:]] == [[False] * 2, [False] * 2, [True] * 2]
    assert work(StepsWanted(3, False, HERE)).parts[0].episodes == []
    work(StepsWanted(1, False, THERE))
    assert [made.address for made in channels.made] == [HERE, THERE]
    assert [made.closed for made in channels.made] == [1, 0]
    work.close()
    work.close()
    assert [made.closed for made in channels.made] == [1, 1]


def test_episodes_without_a_step_are_begun_again(channels):
    work = env_work(lanes=((0,), (1,), (2,)), ring=2)
    assert work(StepsWanted(4, False, HERE)).state == {"begun": [1, 1, 1]}
    state = work(StepsWanted(1, False, HERE)).state
    assert state == {"begun": [1, 1, 1]}  # the next ones have no step yet
    assert work(StepsWanted(1, False, HERE)).state == {"begun": [2, 2, 2]}
    asked = channels.made[0].asked
    number = len(asked)
    work(StepsWanted(1, False, HERE, state={"begun": [4, 5, -1]}))
    clocks = [request["clock"].tolist() for request in asked[number:]]
    assert clocks == [[[0, 5, 0], [1, 6, 0]], [[2, 1, 0]]]
    assert [request["fresh"] for request in asked[number:]] == [[True, True], [True]]
    assert [request["state"] for request in asked[number:]] == [{}, {}]


def test_a_lost_connection_keeps_the_steps(channels):
    work = env_work()
    work(StepsWanted(1, False, HERE))
    channels.made[0].fails_at = 3
    assert work(StepsWanted(4, False, HERE)) == Stalled("gone")
    assert channels.made[0].closed == 1 and len(work.groups[0].steps) == 2
    (part,) = work(StepsWanted(9, True, THERE, resumes=True)).parts
    assert len(part.steps) == 4 and len(channels.made[1].asked) == 2


def test_a_policy_that_cannot_act_ends_it(channels):
    work = env_work()
    work(StepsWanted(1, False, HERE))
    channels.made[0].error = "no such key"
    with refused("the policy worker cannot act: no such key", error=EnvError):
        work(StepsWanted(1, False, HERE))


def test_random_steps_ask_nothing(channels):
    beats = []
    work = env_work()
    work.beat = lambda: beats.append(1)
    (part,) = work(StepsWanted(3, True, HERE, unasked=6)).parts
    assert (len(part.steps), part.version, len(beats)) == (3, 6, 3)
    assert not channels.made[0].asked
    for lane, row in ((0, 0), (1, 1)):
        draws = [np.random.default_rng([0, lane, 1, n]).random(1)[0] for n in range(3)]
        found = [step.actions[row, 0] for step in part.steps]
        assert found == pytest.approx([4 * draw - 2 for draw in draws], abs=1e-6)
    (part,) = work(StepsWanted(1, True, HERE)).parts  # asked for its state, and acts randomly
    draw = np.random.default_rng([0, 0, 1, 3]).random(1)[0]
    assert part.steps[0].actions[0, 0] == pytest.approx(4 * draw - 2, abs=1e-6)
    assert channels.made[0].asked[0]["fresh"] == [True, True] and part.version == 9


def test_random_choices_without_a_mask_are_any():
    work = env_work(low=np.zeros(3), high=np.array([1.0, 1.0, 5.0]), num_choices=2)
    (group,) = work.groups
    group.request()
    drawn = np.concatenate([group.random_actions() for group.envs.lengths[:] in range(40)])
    assert {tuple(row) for row in drawn[:, :2].tolist()} == {(1.0, 0.0), (0.0, 1.0)}
    assert drawn[:, 2].max() > 1.0
