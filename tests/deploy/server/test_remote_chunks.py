"""Chunks through the wire: stateless predictions. Asynchronous inference with a policy server is in test_faults."""

import re

import numpy as np
import pytest
import torch
from websockets.sync.client import connect

from imitate.deploy.schema import Schema
from imitate.deploy.server.client import RemoteError
from imitate.deploy.server.served import ServedPolicy
from imitate.deploy.server.server import ChunkAsk
from imitate.errors import NotFiniteError, UserError, WireError
from imitate.system.channel.messages import decode, encode
from tests.deploy.counting_policy import SCHEMA, Counter, observation
from tests.deploy.in_process import Patient
from tests.deploy.openpi_server import openpi_server
from tests.deploy.policies import observations, policy_of

FLOW = "flow_policy/flow_policy"


@pytest.mark.parametrize("name", ["act/act", FLOW, "bc/bc"])
def test_a_chunk_through_the_wire_is_that_of_the_policy(name, server_of):
    policy, twin = policy_of(name), policy_of(name)
    history = observations(policy, 3)
    with Patient(server_of(ServedPolicy(policy)).url) as remote:
        assert remote.history == twin.history
        execution = twin.algo.execution
        assert remote.execute == (1 if execution is None else execution.execute)
        for count in (1, 3):
            torch.manual_seed(3)
            expected = twin.predict_chunk(history[:count])
            torch.manual_seed(3)
            got = remote.predict_chunk(history[:count])
            np.testing.assert_allclose(got, expected, atol=1e-5)
        assert remote.timing["infer_ms"] > 0


@pytest.mark.parametrize("guidance", ["identity", "vjp", "prefix"])
def test_what_is_planned_guides_through_the_wire(guidance, server_of):
    policy, twin = (policy_of(FLOW, **{"algo.prefix.max_delay": 3}) for _ in range(2))
    history, planned = observations(policy, 2), np.full((4, 7), 0.4)
    with Patient(server_of(ServedPolicy(policy)).url) as remote:
        torch.manual_seed(3)
        expected = twin.predict_chunk(history, planned, 2, guidance)
        torch.manual_seed(3)
        got = remote.predict_chunk(history, planned, delay=2, guidance=guidance)
        np.testing.assert_allclose(got, expected, atol=1e-5)
        assert remote.max_prefix == 3
        assert np.abs(got - twin.predict_chunk(history)).max() > 1e-3
        with pytest.raises(UserError, match="unknown 'magic'"):
            remote.predict_chunk(history, planned, delay=2, guidance="magic")


def test_predictions_leave_the_memories_of_sessions_alone(server_of):
    policy, twin = policy_of("act/act"), policy_of("act/act")
    server = server_of(ServedPolicy(policy))
    seen = observations(policy, 6)
    with Patient(server.url) as one, Patient(server.url) as other:
        for number, ob in enumerate(seen):
            np.testing.assert_allclose(one(ob), twin(ob), atol=1e-5)
            one.predict_chunk(seen[: number + 1])
            other.predict_chunk(seen[: number + 1])


def test_a_policy_with_another_memory_predicts_no_chunks(server_of):
    policy = policy_of("bc/bc_rnn")
    with (
        Patient(server_of(ServedPolicy(policy)).url) as remote,
        pytest.raises(UserError, match="call the policy at every control step"),
    ):
        remote.predict_chunk(observations(policy, 1))


def test_a_prediction_follows_the_instruction_of_its_session(server_of):
    class Known(Counter):
        def begin(self, lang):
            return {**super().begin(lang), "lang": lang}

    served = Known()
    server = server_of(served)
    with Patient(server.url) as one, Patient(server.url) as other:
        one.start_episode("pick")
        other.start_episode("place")
        for policy in (one, other, one):
            policy.predict_chunk([observation()])
    assert [ask.state["lang"] for ask in served.chunk_asks] == ["pick", "place", "pick"]


@pytest.mark.parametrize("name", ["act/act", "bc/bc"])
def test_sessions_that_wait_together_get_their_own_chunks_in_one_pass(name):
    policy, twin = policy_of(name), policy_of(name)
    served, calls = ServedPolicy(policy), []
    predict = policy.predict_chunk
    policy.predict_chunk = lambda *words, **rest: calls.append(words) or predict(*words, **rest)
    histories = [observations(policy, 1, seed) for seed in range(4)]
    asks = [ChunkAsk(served.begin(None), history) for history in histories]
    for history, chunk in zip(histories, served.predict_chunks(asks), strict=True):
        np.testing.assert_allclose(chunk, twin.predict_chunk(history), atol=1e-5)
    assert len(calls) == 1


def test_histories_of_other_lengths_and_guided_ones_keep_their_places():
    policy, twin = policy_of(FLOW), policy_of(FLOW)
    served, seen = ServedPolicy(policy), observations(policy, 2)
    planned = np.full((4, 7), 0.4)
    asks = [
        ChunkAsk(served.begin(None), seen),
        ChunkAsk(served.begin(None), seen, planned, 2, "identity"),
        ChunkAsk(served.begin(None), seen[:1]),
        ChunkAsk(served.begin(None), seen),
    ]
    chunks = served.predict_chunks(asks)
    assert [chunk.shape for chunk in chunks] == [twin.predict_chunk(seen).shape] * 4
    free = [np.abs(chunk[:2] - 0.4).mean() for chunk in chunks]
    assert free[1] < 0.35 * min(free[0], free[2], free[3])


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({}, "1 to 2 observations"),
        ({"history": []}, "1 to 2 observations"),
        ({"history": [observation()] * 3}, "1 to 2 observations"),
        ({"history": [7]}, "map of arrays"),
        ({"history": [{"state": np.zeros(2)}]}, "'camera' is missing"),
        ({"history": [observation()], "delay": -1}, "delay: got -1"),
        ({"history": [observation()], "delay": 1.5}, "delay: got 1.5"),
        (
            {"history": [observation()], "planned": np.zeros((3, 5))},
            r"finite numbers of shape \(n, 2\)",
        ),
        ({"history": [observation()], "planned": np.full((3, 2), np.nan)}, "finite numbers"),
        ({"history": [observation()], "planned": np.zeros((0, 2))}, "n at least 1"),
        ({"history": [observation()], "planned": "abc"}, "finite numbers"),
        ({"history": [observation()], "guidance": 3}, "guidance must be text"),
    ],
)
def test_what_cannot_be_predicted_is_one_line_and_the_session_goes_on(message, words, server_of):
    with connect(server_of(Counter()).url) as raw:
        decode(raw.recv())
        raw.send(encode({"imitate": {"kind": "predict", "id": 1}, **message}))
        reply = decode(raw.recv())
        assert reply["imitate"]["kind"] == "error"
        assert re.search(words, reply["error"])
        raw.send(encode({"imitate": {"kind": "predict", "id": 2}, "history": [observation(3)]}))
        assert decode(raw.recv())["chunk"][:, 0].tolist() == [3, 4, 5, 6]


def test_schemas_of_before_are_read_and_predict_no_chunks():
    before = SCHEMA.to_dict()
    for name in ("history", "execute"):
        before.pop(name)
    schema = Schema.from_dict(before)
    assert (schema.history, schema.execute, schema.chunk) == (0, 1, 4)
    assert Schema.from_dict({**SCHEMA.to_dict(), "of_tomorrow": 3}) == SCHEMA
    with pytest.raises(WireError, match="cannot be read"):
        Schema.from_dict({**before, "history": "two"})


def test_not_finite_is_refused_before_it_is_sent(server_of):
    served = Counter()
    with Patient(server_of(served).url) as policy:
        for call in (policy, policy.check, lambda ob: policy.predict_chunk([ob])):
            with pytest.raises(NotFiniteError, match="'state' is not finite"):
                call(observation(np.nan))
        assert not served.batches and not served.chunk_asks
        policy(observation())


# ---- openpi --------------------------------------------------------------------------------------


def acted_on(obs):
    """Four actions from the state on; an error where the state is 13."""
    if obs["state"][1] == 13.0:
        raise RuntimeError("no actions for 13")
    return {"actions": (obs["state"][0] + np.arange(4.0, dtype=np.float32))[:, None]}


def test_an_openpi_server_answers_with_its_chunk():
    seen = []
    noting = openpi_server(lambda obs: seen.append(obs) or acted_on(obs))
    with noting as url, Patient(url) as policy:
        assert (policy.schema, policy.history, policy.execute, policy.obs_keys) == (None, 1, 1, ())
        policy.start_episode("pick it up")
        chunk = policy.predict_chunk([observation(1), observation(2)])
        assert chunk[:, 0].tolist() == [2, 3, 4, 5]
        assert seen[0]["prompt"] == "pick it up"
        assert policy(observation(7)).tolist() == [7]
        assert policy.planned_actions()[:, 0].tolist() == [7, 8, 9, 10]
        with pytest.raises(UserError, match="does not accept planned actions"):
            policy.predict_chunk([observation()], np.zeros((3, 1)))


def test_an_openpi_server_is_sent_nothing_that_is_not_finite():
    seen = []
    noting = openpi_server(lambda obs: seen.append(obs) or acted_on(obs))
    with noting as url, Patient(url) as policy:
        for call in (policy, policy.check, lambda ob: policy.predict_chunk([ob])):
            with pytest.raises(NotFiniteError, match="'state'"):
                call({"state": np.array([0.0, np.nan], np.float32)})
        policy(observation(1))
    assert len(seen) == 1


def test_a_traceback_of_an_openpi_server_is_its_last_line_and_the_next_call_connects_anew():
    with openpi_server(acted_on) as url, Patient(url) as policy:
        policy(observation(1))
        with pytest.raises(UserError, match=r"ws://\S+: RuntimeError: no actions for 13$"):
            policy(observation(1, 13))
        with pytest.raises(RemoteError):
            policy(observation(1))
        assert policy(observation(3)).tolist() == [3]
