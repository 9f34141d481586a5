import functools

import numpy as np
import pytest

from imitate.errors import EnvError, RewardError, RobotError
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.steps import Collected, EpisodeRecord, Metrics, Step
from tests.refusals import refused

from .worlds import Faulty, Line


def group(make=Line, lanes=2, **kwargs):
    made = EnvGroup(make, np.arange(lanes), seed=3, **{"horizon": 4, **kwargs})
    made.reset()
    return made


def test_a_step_shows_the_last_observation_and_the_group_the_next_first_one():
    envs = group(functools.partial(Line, length=5.0), horizon=100)
    envs.obs["place"][:] = [[1.0], [2.0]]
    for env, place in zip(envs.envs, (1.0, 2.0), strict=True):
        env.place = place
    step = envs.step(np.array([[1.0], [4.0]]))
    assert step.obs["place"].tolist() == [[1.0], [2.0]]
    assert step.next_obs["place"].tolist() == [[2.0], [6.0]]
    assert step.rewards.tolist() == [2.0, 6.0]
    assert step.terminals.tolist() == [False, True] and not step.timeouts.any()
    assert envs.obs["place"][0] == 2.0
    assert envs.obs["place"][1] == envs.envs[1].seeds[-1] % 7
    assert [(e.env_return, e.length) for e in envs.finished] == [(6.0, 1)]


def test_the_clock_ends_episodes_and_is_no_terminal():
    envs = group(horizon=3, discount=0.5)
    places = envs.obs["place"].copy()
    ends = [envs.step(np.zeros((2, 1))) for _ in range(3)]
    assert [s.timeouts.tolist() for s in ends] == [[False] * 2, [False] * 2, [True] * 2]
    assert not any(s.terminals.any() for s in ends)
    first = envs.finished[0]
    assert first.env_return == 3 * places[0]
    assert first.discounted_return == 1.75 * places[0]
    assert first.success and first.length == 3


def test_discounted_returns_from_the_start_and_from_all_steps():
    """Rewards 1, 2, 3 and discount 0.5: from the steps on 1 + 1 + 0.75, 2 + 1.5 and 3, in the mean 9.25 / 3."""
    envs = group(horizon=3, discount=0.5, lanes=1)
    envs.envs[0].place = 0.0
    for _ in range(3):
        envs.step(np.ones((1, 1)))
    episode = envs.finished[0]
    assert episode.discounted_return == 2.75
    assert episode.mean_discounted_return == pytest.approx(9.25 / 3)
    metrics = Metrics()
    metrics.add(3, [episode, EpisodeRecord(1.0, 0.25, 1, True, {}, 0.75)])
    numbers = metrics.numbers()
    assert numbers["Metrics/EpisodicStartAverageDiscountedReturn"] == 1.5
    assert numbers["Metrics/AverageDiscountedReturn"] == pytest.approx((9.25 / 3 + 0.75) / 2)


def test_metrics_of_checkpoints_without_the_mean_over_steps_are_read():
    metrics = Metrics()
    metrics.load_state_dict({"steps": 4, "episodes": 1, "latest": [[3.0, 2.0, 4, True, {}]]})
    numbers = metrics.numbers()
    assert numbers["Metrics/EpisodicStartAverageDiscountedReturn"] == 2.0
    assert "Metrics/AverageDiscountedReturn" not in numbers
    again = Metrics()
    again.load_state_dict(metrics.state_dict())
    assert again.numbers() == numbers


def test_several_rewards_are_refused_at_the_first_step():
    class Several(Line):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs, np.array([reward, 1.0]), *rest

    envs = group(Several)
    with pytest.raises(RewardError, match=r"the reward has shape \(2,\); expected one number"):
        envs.step(np.zeros((2, 1)))
    assert not envs.messages


def test_numbers_in_info_are_summed_over_an_episode():
    """A cost of 1 in the second of three steps is logged as 1, and not as that of the last step."""

    class Costly(Line):
        def step(self, action):
            *outcome, info = super().step(action)
            second = self.steps == 2
            costs = {"cost": float(second), "force@max": 5.0 * second, "speed@step": self.steps}
            return *outcome, {**info, **costs, "name": "x", "touched": np.bool_(second)}

    envs = group(Costly, horizon=3, lanes=1)
    for _ in range(6):
        envs.step(np.zeros((1, 1)))
    for episode in envs.finished:
        assert episode.totals == {
            "success": 1.0, "cost": 1.0, "force@max": 5.0, "speed@step": 2.0, "touched": 1.0,
        }  # fmt: skip
    metrics, restored = Metrics(), Metrics()
    metrics.add(6, envs.finished)
    restored.load_state_dict(metrics.state_dict())
    for numbers in (metrics.numbers(), restored.numbers()):
        found = [numbers[f"Metrics/{kind}EnvInfo[cost]"] for kind in ("Average", "Last")]
        assert found == [1.0, 0.0]


def test_success_may_end_an_episode():
    envs = group(horizon=100, end_at_success=True)
    flags = [envs.step(np.zeros((2, 1))).terminals.tolist() for _ in range(4)]
    assert flags == [[False] * 2, [False] * 2, [True] * 2, [False] * 2]


def test_seeds_depend_on_the_lane_and_the_episode_alone():
    envs = group(horizon=2)
    for _ in range(6):
        envs.step(np.zeros((2, 1)))
    seeds = [env.seeds for env in envs.envs]
    assert len({*seeds[0], *seeds[1]}) == 8
    other = EnvGroup(Line, np.array([1]), seed=3, horizon=100)
    other.reset()
    assert other.envs[0].seeds == seeds[1][:1]
    other.begun[0] = 2
    other.reset()
    assert other.envs[0].seeds[-1] == seeds[1][2]


WAYS = {
    "crash": "RuntimeError: the simulator is gone",
    "nan_obs": "ValueError: observation 'place' holds NaN or inf",
    "nan_reward": "ValueError: the reward is nan, wanted a finite number",
    "shape": "ValueError: observation 'place' has shape (2,), but (1,) before",
}


@pytest.mark.parametrize("how", WAYS)
def test_a_failing_environment_is_replaced_and_its_episode_void(how):
    made = []

    def make():
        made.append(Faulty(how, 2) if len(made) == 1 else Line())
        return made[-1]

    envs = group(make, horizon=5)
    assert envs.step(np.zeros((2, 1))).lost is None
    before = envs.obs["place"][1].copy()
    step = envs.step(np.zeros((2, 1)))
    assert step.lost.tolist() == [False, True]
    assert step.rewards[1] == 0.0 and step.next_obs["place"][1] == before
    assert envs.obs["place"][1] == made[2].seeds[0] % 7 and len(made[2].seeds) == 1
    assert not step.terminals.any() and not step.timeouts.any()
    assert made[1].closed and envs.envs[1] is made[2] is not made[1]
    (said,) = envs.messages
    assert said.startswith(f"environment 1 failed ({WAYS[how]}")
    assert said.endswith("; its episode is discarded, and a new copy replaces it")
    for _ in range(3):
        envs.step(np.zeros((2, 1)))
    assert [e.length for e in envs.finished] == [5]
    assert np.isfinite(envs.obs["place"]).all()


def test_a_closed_group_frees_all_simulators():
    envs = group(Line)
    envs.close()
    assert [env.closed for env in envs.envs] == [True, True]


def test_an_environment_that_always_fails_ends_the_training():
    with pytest.raises(EnvError, match="10 failures without a complete episode.*check-env"):
        envs = group(functools.partial(Faulty, "crash", 1))
        for _ in range(20):
            envs.step(np.zeros((2, 1)))


def test_an_environment_that_cannot_be_reset_ends_the_training():
    class Broken(Line):
        def reset(self, *, seed=None):
            raise OSError("no display")

    with pytest.raises(EnvError, match="no display"):
        group(Broken)


def test_lost_steps_are_not_counted_and_end_an_episode():
    ends, never = np.array([True, False, False]), np.zeros(3, dtype=bool)
    lost = np.array([False, False, True])
    step = Step({}, np.zeros((3, 1)), np.zeros(3, np.float32), ends, never, {}, lost=lost)
    assert step.ends.tolist() == [True, False, True]
    assert Collected([step, step], np.arange(3), []).num_steps == 4


class Staged(Line):
    def set_stage(self, kwargs):
        if kwargs["length"] < 0:
            raise RuntimeError("no such length")
        self.length = kwargs["length"]


def test_a_stage_is_set_in_running_environments_that_can():
    envs = group(Staged)
    before = list(envs.envs)
    assert envs.begin_stage(functools.partial(Staged, 2.0), {"length": 2.0})
    assert envs.envs == before and [env.length for env in before] == [2.0, 2.0]
    # A copy that fails is replaced by one of the stage.
    assert envs.begin_stage(functools.partial(Staged, 9.0), {"length": -1.0})
    assert not set(envs.envs) & set(before) and {env.length for env in envs.envs} == {9.0}
    assert "no such length" in envs.messages[0]
    assert not group(Line).begin_stage(Line, {"length": 2.0})


def test_a_lost_step_has_neither_the_reward_nor_the_words_of_its_environment():
    class Wild(Line):
        def step(self, action):
            obs, _, terminated, truncated, info = super().step(action)
            return (
                {**obs, "place": obs["place"] * np.nan},
                5.0,
                terminated,
                truncated,
                {**info, "intervened": True, "executed_action": np.array([9.0])},
            )

    step = group(Wild, lanes=1).step(np.zeros((1, 1)))
    assert step.lost.tolist() == [True]
    assert step.rewards.tolist() == [0.0]
    assert step.actions.tolist() == [[0.0]]
    assert step.intervened is None


class Telling(Line):
    """Reports this ``info`` in each step, and ends as given."""

    def __init__(self, info, terminated=False, truncated=False):
        super().__init__()
        self.info, self.end = info, (terminated, truncated)

    def step(self, action):
        obs, reward, *_ = super().step(action)
        return obs, reward, *self.end, self.info


def several(*made, **kwargs):
    """Return a group of these environments."""
    copies = iter(made)
    return group(lambda: next(copies), len(made), **kwargs)


def test_nine_failures_without_an_episode_between_them_are_borne():
    def rarely():
        return Faulty("crash", 3)

    envs = group(rarely, lanes=1, horizon=2)
    for _ in range(40):  # an episode of two steps, and then a failure
        envs.step(np.zeros((1, 1)))
    assert len(envs.messages) > 10 and len(envs.finished) > 10
    envs = group(functools.partial(Faulty, "crash", 1), lanes=1)
    for _ in range(9):
        assert envs.step(np.zeros((1, 1))).lost.tolist() == [True]
    with pytest.raises(EnvError, match="10 failures"):
        envs.step(np.zeros((1, 1)))


def test_a_robot_that_fails_is_not_replaced():
    class Robot(Staged):
        fails = ""

        def reset(self, *, seed=None):
            return self.refuse("reset") or super().reset(seed=seed)

        def step(self, action):
            return self.refuse("step") or super().step(action)

        def set_stage(self, kwargs):
            self.refuse("stage")

        def refuse(self, what):
            if self.fails == what:
                raise RobotError("look at it")

    envs = group(Robot, lanes=1)
    calls = {
        "reset": envs.reset,
        "step": lambda: envs.step(np.zeros((1, 1))),
        "stage": lambda: envs.begin_stage(Robot, {}),
    }
    for envs.envs[0].fails, call in calls.items():
        with pytest.raises(RobotError, match="look at it"):
            call()
    assert not envs.messages


def test_a_copy_that_cannot_even_be_closed_is_replaced():
    class Stuck(Faulty):
        def close(self):
            raise OSError("it hangs")

    made = [Stuck("crash", 1), Line()]
    envs = group(lambda: made[0] if made[0].taken == 0 else made[1], lanes=1)
    assert envs.step(np.zeros((1, 1))).lost.tolist() == [True]
    assert envs.envs == [made[1]]
    assert envs.messages[1] == "environment 0: closing it failed too (it hangs)"


def test_ends_that_an_environment_tells():
    envs = several(Telling({}, truncated=True), Telling({}, True, True), Telling({}, True), Line())
    step = envs.step(np.zeros((4, 1)))
    assert step.timeouts.tolist() == [True, False, False, False]
    assert step.terminals.tolist() == [False, True, True, False]
    # What the environments do not tell is not known.
    assert [episode.success for episode in envs.finished] == [None] * 3
    last = group(functools.partial(Telling, {}, True), horizon=1).step(np.zeros((2, 1)))
    assert last.terminals.all() and not last.timeouts.any()


def test_success_once_is_success_of_the_episode_and_ends_it_only_if_asked():
    info = {"success": True, "name": "x", "speed": np.float32(2.5), "many": np.zeros(2)}
    envs = several(Telling(info), Telling({"success": False}), horizon=2)
    for info["success"] in (True, False):
        step = envs.step(np.zeros((2, 1)))
        assert not step.terminals.any()
    assert [episode.success for episode in envs.finished] == [True, False]
    assert [e.info for e in envs.finished] == [{"success": 0.0, "speed": 2.5}, {"success": 0.0}]


def test_executed_actions_and_interventions_of_those_that_tell_them():
    envs = several(
        Telling({"executed_action": np.array([0.5])}), Line(), Telling({"intervened": True})
    )
    given = np.array([[1.0], [1.5], [2.0]])
    step = envs.step(given)
    assert step.actions.tolist() == [[0.5], [1.5], [2.0]] and given[0] == 1.0
    assert step.intervened.tolist() == [False, False, True]
    assert group().step(given[:2]).intervened is None


def test_named_rewards_of_a_step():
    signals = ("reward", "info:speed")
    envs = several(Telling({"speed": 3}), Telling({"speed": 0.5}), signals=signals)
    step = envs.step(np.zeros((2, 1)))
    assert step.signals.tolist() == [[step.rewards[0], 3.0], [step.rewards[1], 0.5]]
    assert step.signals.dtype == np.float32 and group().step(np.zeros((2, 1))).signals is None
    # A step that is lost has none, and needs none.
    envs = group(functools.partial(Faulty, "crash", 1), lanes=1, signals=signals)
    assert envs.step(np.zeros((1, 1))).signals.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (
            {"speeds": 1.0, "name": "x"},
            "the environment's info has no 'speed' in a step; did you mean 'speeds'?",
        ),
        ({"speed": np.inf}, "one of reward, info:speed is NaN or inf in a step"),
    ],
)
def test_named_rewards_that_are_not_there(info, words):
    envs = several(Telling(info), signals=("reward", "info:speed"))
    with refused(f"algo.rewards: {words}", error=RewardError):
        envs.step(np.zeros((1, 1)))


def test_pixels_stay_bytes_and_all_else_becomes_float32():
    class Seen(Line):
        def obs(self):
            return {"place": np.array([self.place]), "eye": np.full((2, 2, 3), 200, np.uint8)}

    seen = group(Seen).obs
    assert {key: (x.dtype.name, x.shape) for key, x in seen.items()} == {
        "place": ("float32", (2, 1)),
        "eye": ("uint8", (2, 2, 2, 3)),
    }
    assert (seen["eye"] == 200).all()
