"""Observations under other names than those of the data."""

from functools import partial

import numpy as np
import pytest

from imitate import RolloutPolicy, policy_from_checkpoint
from imitate.deploy.server.served import ServedPolicy, schema_of
from imitate.errors import CheckpointError, UserError
from imitate.policy.checkpoint import checkpoint_dict, load_checkpoint, save_checkpoint
from imitate.policy.renaming import RenamedPolicy, given_names, joined, parse_rename, rename_words
from tests.tiny import tiny_algo


def make_algo(goal=False):
    return tiny_algo(obs={"pos": 3, "vel": 3}, action=2, goal=("pos",) if goal else ())


POS, VEL = np.array([0.1, -0.2, 0.3]), np.array([1.0, 2.0, -3.0])


def test_entries_of_the_option():
    assert parse_rename(["agent_pos=state", "pixels=top_image"]) == {
        "agent_pos": "state",
        "pixels": "top_image",
    }
    assert parse_rename(["a=b", "a=b"]) == {"a": "b"}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *(
            (partial(parse_rename, [entry]), "expected NEW=OLD")
            for entry in ("agent_pos", "=state", "agent_pos=", "=")
        ),
        (partial(parse_rename, ["a=x", "a=y"]), "'a' cannot be both 'x' and 'y'"),
        (partial(given_names, {"a": "x", "b": "x"}, ["x"]), "'x' would be both 'a' and 'b'"),
        (
            partial(given_names, {"pos": "vel"}, ["pos", "vel"]),
            "'pos' would be both .* of the policy",
        ),
        (
            partial(given_names, {"agent_pos": "stat"}, ["state", "image"]),
            "no observation 'stat'; did you mean 'state'",
        ),
    ],
)
def test_names_that_are_refused(call, words):
    with pytest.raises(UserError, match=words):
        call()


def test_names_chosen_later_win():
    saved = {"agent_pos": "state", "pixels": "image"}
    assert joined(saved, {"xy": "state"}) == {"pixels": "image", "xy": "state"}
    assert joined(saved, {"agent_pos": "image"}) == {"agent_pos": "image"}
    assert joined(None, None) == {}
    assert rename_words(saved) == "'agent_pos' as 'state', 'pixels' as 'image'"


@pytest.mark.parametrize("batched", [False, True])
def test_it_acts_as_under_its_own_names(batched):
    algo = make_algo()
    plain, renamed = RolloutPolicy(algo), RolloutPolicy(algo, rename={"speed": "vel"})
    assert renamed.obs_keys == ("pos", "speed")
    assert renamed.raw_shapes == {"pos": (3,), "speed": (3,)}
    assert renamed.modalities["speed"] == "low_dim"
    pos, vel = (x[None] if batched else x for x in (POS, VEL))
    wanted = plain({"pos": pos, "vel": vel}, batched_ob=batched)
    # An environment may have an observation of its own that is called as the policy's.
    given = {"pos": pos, "speed": vel, "vel": pos}
    assert np.array_equal(renamed(given, batched_ob=batched), wanted)
    chunk = renamed.predict_chunk([given], batched_ob=batched)
    assert np.array_equal(chunk.reshape(-1, 2)[0], wanted.reshape(-1))


def test_two_names_may_be_swapped():
    algo = make_algo()
    swapped = RolloutPolicy(algo, rename={"pos": "vel", "vel": "pos"})
    assert np.array_equal(
        swapped({"pos": VEL, "vel": POS}), RolloutPolicy(algo)({"pos": POS, "vel": VEL})
    )


def test_goals_are_renamed_too():
    algo = make_algo(goal=True)
    renamed = RolloutPolicy(algo, rename={"xyz": "pos"})
    assert renamed.goal_keys == ("xyz",)
    wanted = RolloutPolicy(algo)({"pos": POS, "vel": VEL}, goal={"pos": VEL})
    assert np.array_equal(renamed({"xyz": POS, "vel": VEL}, goal={"xyz": VEL}), wanted)


def test_what_is_missing_is_called_as_the_caller_does():
    policy = RolloutPolicy(make_algo(), rename={"speed": "vel"})
    with pytest.raises(UserError, match="needs speed, but got pos, vel"):
        policy({"pos": POS, "vel": VEL})
    with pytest.raises(UserError, match="speed"):
        policy.check({"pos": POS, "speed": VEL * np.nan})


def test_a_server_asks_for_the_new_names():
    policy = RolloutPolicy(make_algo(), rename={"speed": "vel"})
    assert tuple(schema_of(policy).observations) == ("pos", "speed")
    assert tuple(ServedPolicy(policy).schema.observations) == ("pos", "speed")


def test_names_are_saved_with_a_checkpoint(tmp_path):
    algo, path = make_algo(), tmp_path / "a.pth"
    ckpt = checkpoint_dict(algo, env_metadata={}, shape_metadata={})
    save_checkpoint({**ckpt, "rename": {"speed": "vel"}}, path)
    policy, loaded = policy_from_checkpoint(device="cpu", ckpt_path=path)
    assert policy.obs_keys == ("pos", "speed") and loaded["rename"] == {"speed": "vel"}
    other, _ = policy_from_checkpoint(device="cpu", ckpt_path=path, rename={"v": "vel", "x": "pos"})
    assert other.obs_keys == ("x", "v")
    save_checkpoint({**ckpt, "rename": ["speed", "vel"]}, path)
    with pytest.raises(CheckpointError, match="'rename' of the checkpoint"):
        load_checkpoint(path)


def test_names_of_joints_follow_their_observation():
    names = {"vel": ["x", "y", "z"], "actions": ["a", "b"]}
    policy = RolloutPolicy(make_algo(), number_names=names, rename={"speed": "vel"})
    assert policy.number_names == {"speed": ("x", "y", "z"), "actions": ("a", "b")}


class Served:
    control_freq = 20.0

    def __call__(self, ob):
        return ob["observation/state"] + sum(ob["other"])

    def predict_chunk(self, history, **rest):
        return [self(ob) for ob in history], rest


def test_a_served_policy_that_does_not_tell_its_names():
    policy = RenamedPolicy(Served(), {"joints": "observation/state"})
    ob = {"joints": np.ones(2), "other": [1, 2]}
    np.testing.assert_array_equal(policy(ob), [4, 4])
    chunk, rest = policy.predict_chunk([ob], horizon=3)
    np.testing.assert_array_equal(chunk, [[4, 4]])
    assert rest == {"horizon": 3}
    assert policy.control_freq == 20.0
    with pytest.raises(UserError, match="gives no observation 'joints'; it gives other"):
        policy({"other": [1]})
