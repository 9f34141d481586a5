"""A served policy acts as the policy itself, alone and in a batch with other sessions."""

import numpy as np
import pytest

from imitate.deploy.check.statistics import training_of_schema
from imitate.deploy.server.client import RemotePolicy
from imitate.deploy.server.served import ServedPolicy, schema_of
from imitate.deploy.server.server import Ask, ChunkAsk
from imitate.errors import NotFiniteError, UserError
from imitate.policy.rollout_policy import RolloutPolicy
from tests.deploy.policies import instructed, observations, policy_of
from tests.refusals import refused
from tests.tiny import tiny_algo

NAMES = ["bc/bc", "bc/bc_rnn", "act/act", "dt/dt", "bc/bc_transformer"]


@pytest.mark.parametrize("name", NAMES)
def test_over_the_wire_as_in_process(name, network_of):
    policy, twin = policy_of(name), policy_of(name)
    obs = observations(policy, 12)
    twin.start_episode()
    expected = [twin(ob) for ob in obs]
    network_of(ServedPolicy(policy))
    with RemotePolicy("ws://here") as remote:
        assert (remote.control_freq, remote.obs_keys) == (20.0, policy.obs_keys)
        remote.start_episode()
        got = [remote(ob) for ob in obs]
        if (planned := twin.planned_actions()) is not None:
            np.testing.assert_allclose(remote.planned_actions(), planned[0], atol=1e-5)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_a_client_is_told_the_names_and_the_ranges_of_the_training(network_of):
    algo = policy_of("bc/bc").algo
    key, (size,) = next(iter(algo.obs_shapes.items()))
    names = {key: tuple(map(str, range(size))), "other": ("x",)}
    row = {"mean": [0.5] * size, "std": [1] * size, "min": [-2] * size, "max": [2] * size}
    row |= {"first_min": [-1] * size, "first_max": [1] * size}
    policy = RolloutPolicy(algo, number_names=names, ranges={key: row, "other": row})
    network_of(ServedPolicy(policy))
    with RemotePolicy("ws://here") as remote:
        assert remote.number_names == {key: names[key]}
        known = training_of_schema(
            remote.schema.ranges, {key: "low_dim", "other": "low_dim"}
        ).ranges
    assert list(known) == [key]
    np.testing.assert_array_equal(known[key].high, [2.0] * size)
    np.testing.assert_array_equal(known[key].first, [[-1.0] * size, [1.0] * size])
    assert not training_of_schema({key: {"mean": "many"}}, {key: "low_dim"}).origin


@pytest.mark.parametrize("name", NAMES)
def test_sessions_in_one_batch_do_not_share_a_memory(name):
    policy, twins = policy_of(name), [policy_of(name) for _ in range(3)]
    served = ServedPolicy(policy)
    streams = [observations(policy, 8, seed) for seed in range(3)]
    memories = [served.begin(None) for _ in range(3)]
    for step in range(8):
        # The third session begins two steps later than the others.
        rows = [row for row in range(3) if row < 2 or step >= 2]
        asks = [Ask(memories[row], streams[row][step], {}, None) for row in rows]
        for row, reply in zip(rows, served.predict(asks), strict=True):
            memories[row] = reply.state
            np.testing.assert_allclose(reply.action, twins[row](streams[row][step]), atol=1e-5)
            np.testing.assert_allclose(reply.chunk[0], reply.action)


def test_a_cut_plan_is_predicted_anew():
    policy = policy_of("act/act")
    served = ServedPolicy(policy)
    first, second = observations(policy, 2)
    reply = served.predict([Ask(served.begin(None), first, {}, None)])[0]
    kept = served.predict([Ask(reply.state, second, {}, None)])[0]
    anew = served.predict([Ask(served.cut(reply.state), second, {}, None)])[0]
    np.testing.assert_allclose(kept.action, reply.chunk[1], atol=1e-6)
    assert np.abs(anew.action - kept.action).max() > 1e-4


def test_instructions_are_of_the_session():
    twin, served = instructed(), ServedPolicy(instructed())
    langs = served.schema.languages
    assert langs == ("pick", "place")
    assert "lang_emb" not in served.schema.observations
    ob = {"object": np.ones(10, np.float32)}
    replies = served.predict([Ask(served.begin(lang), ob, {}, lang) for lang in langs])
    chunks = served.predict_chunks([ChunkAsk(served.begin(lang), [ob]) for lang in langs])
    for lang, reply, chunk in zip(langs, replies, chunks, strict=True):
        twin.start_episode(lang)
        np.testing.assert_allclose(reply.action, twin(ob), atol=1e-6)
        np.testing.assert_allclose(chunk, twin.predict_chunk([ob]), atol=1e-6)
    assert np.abs(replies[0].action - replies[1].action).max() > 1e-4
    assert np.abs(chunks[0] - chunks[1]).max() > 1e-4
    with refused("pick", error=UserError):
        served.begin("throw")


def test_a_session_with_nan_fails_alone(network_of):
    policy = policy_of("bc/bc")
    served = ServedPolicy(policy)
    good, bad = observations(policy, 2)
    bad["object"][0] = np.nan
    with refused("object", error=NotFiniteError):
        served.predict([Ask(served.begin(None), bad, {}, None)])
    network_of(served)
    with RemotePolicy("ws://here") as one, RemotePolicy("ws://here") as other:
        other(good)
        with refused("object", error=UserError):
            one(bad)
        one(good)
        other(good)


def test_the_schema_tells_shapes_limits_and_chunks():
    schema = schema_of(policy_of("act/act"))
    assert (schema.action_low, schema.action_high) == ((-0.9,) * 7, (0.9,) * 7)
    assert schema.chunk > 1 and schema.algorithm == "act"
    assert all(spec.kind == "low_dim" for spec in schema.observations.values())


def test_chunks_come_in_the_order_of_the_requests_and_planned_ones_with_their_instruction(
    monkeypatch,
):
    policy, asked = instructed(), []
    served, ob = ServedPolicy(policy), {"object": np.ones(10, np.float32)}

    def predict(history, planned=None, delay=0, guidance="", *, batched_ob=False):
        asked.append((history[0]["lang_emb"].tolist(), delay, guidance))
        return np.zeros((2, 1, 7)) + [[[1.0]], [[2.0]]] if batched_ob else np.full((1, 7), 9.0)

    monkeypatch.setattr(policy, "predict_chunk", predict)
    pick, place = (served.begin(lang) for lang in ("pick", "place"))
    planned = ChunkAsk(place, [ob], planned=np.zeros((2, 7)), delay=1)
    chunks = served.predict_chunks([ChunkAsk(pick, [ob]), planned, ChunkAsk(place, [ob])])
    assert [chunk[0, 0] for chunk in chunks] == [1.0, 9.0, 2.0]
    assert asked == [([0.0, 1.0], 1, "identity"), ([[1.0, 0.0], [0.0, 1.0]], 0, "")]


def test_the_only_instruction_need_not_be_named_and_one_of_two_must():
    assert ServedPolicy(instructed(("pick",))).begin(None).vector.tolist() == [1.0]
    served, ob = ServedPolicy(instructed()), {"object": np.ones(10, np.float32)}
    unnamed, pick = served.begin(None), served.begin("pick")
    assert unnamed.vector is None
    with refused("an episode has no instruction", error=UserError):
        served.predict([Ask(state, ob, {}, None) for state in (pick, unnamed)])


@pytest.mark.parametrize(("name", "chunk", "execute"), [("bc/bc", 1, 1), ("act/act", 16, 8)])
def test_the_schema_tells_how_many_actions_are_predicted_and_executed(name, chunk, execute):
    schema = schema_of(policy_of(name))
    assert (schema.chunk, schema.execute) == (chunk, execute)


def test_each_session_has_its_goal():
    def policy():
        algo = tiny_algo("bc", obs={"s": 1}, goal=("s",))
        algo.set_eval()
        return RolloutPolicy(algo)

    served, goals = ServedPolicy(policy()), ([-1.0], [2.0])
    obs = {"s": np.array([0.5], np.float32)}
    made = [{"s": np.array(goal, np.float32)} for goal in goals]
    asks = [Ask(served.begin(None), obs, goal, None) for goal in made]
    found = [reply.action for reply in served.predict(asks)]
    twin = policy()
    twin.start_episode()
    np.testing.assert_allclose(found, [twin(obs, goal) for goal in made], atol=1e-6)
    assert np.abs(found[0] - found[1]).max() > 1e-3
