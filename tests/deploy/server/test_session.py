"""Messages of a session and their answers, without a connection."""

from dataclasses import replace

import numpy as np
import pytest

from imitate.deploy.schema import HEADER, ObservedKey, Schema
from imitate.deploy.server.session import Desk, Session, one_line
from imitate.errors import UserError, WireError
from imitate.system.channel.messages import decode_map
from tests.deploy.counting_policy import Counter

pytestmark = pytest.mark.usefixtures("virtual_time")


class Small(Counter):
    """The counting policy with vectors alone; a prediction takes 0.25 s."""

    schema = Schema(
        observations={"state": ObservedKey((2,))},
        action_dim=2,
        action_low=(-1.0, -1.0),
        action_high=(1.0, 1.0),
        languages=("pick", "place"),
        history=2,
    )


class WithGoals(Small):
    """It acts by the first number of its goal."""

    schema = replace(Small.schema, goals={"state": ObservedKey((2,))}, history=0)

    def predict(self, asks):
        return super().predict([replace(ask, obs={"state": ask.goal["state"]}) for ask in asks])


class Client:
    """A client's side of a session."""

    def __init__(self, served=None):
        self.desk = Desk(served or Small(0.25))
        self.session = Session(self.desk)

    def all(self, *messages):
        return [decode_map(found, 10**6) for found in self.session.answers(messages)]

    def say(self, kind, header=None, **message):
        (answer,) = self.all({HEADER: {"kind": kind, **(header or {})}, **message})
        return answer

    def counts(self):
        found = self.desk.statistics
        return found.answered, found.dropped, found.errors


def state(first, second=0.0):
    return {"state": np.array([first, second])}


def test_steps_of_an_episode():
    client = Client()
    answer = client.say("observe", {"id": 7, "t": 1.5, "other": 3}, obs=state(5.0))
    timing = {"queued_ms": 0.0, "infer_ms": 250.0, "together": 1}
    assert answer[HEADER] == {"kind": "action", "id": 7, "t": 1.5, **timing}
    assert answer["action"].tolist() == [0, 5]
    assert answer["chunk"].tolist() == [[0, 5], [1, 6], [2, 7], [3, 8]]
    assert client.say("observe", obs=state(5.0))["action"].tolist() == [1, 5]
    assert client.say("cut", {"id": 8})[HEADER] == {"kind": "cut", "id": 8}
    assert client.say("observe", obs=state(5.0))["chunk"][0].tolist() == [102, 105]
    assert client.say("begin", {"id": 9}, lang="pick")[HEADER] == {"kind": "begun", "id": 9}
    assert client.say("observe", obs=state(5.0))["chunk"][0].tolist() == [0, 5]
    assert client.say("ping", {"id": 1, "t": "now"})[HEADER] == {"kind": "pong", "id": 1}
    assert client.counts() == (4, 0, 0)


def test_nothing_is_cut_before_the_first_observation():
    client = Client()
    assert client.say("cut")[HEADER] == {"kind": "cut"}
    assert client.say("observe", obs=state(5.0))["chunk"][0].tolist() == [0, 5]


def test_goals():
    client = Client(WithGoals())
    assert client.say("observe", obs=state(5.0), goal=state(2.0))["action"].tolist() == [0, 2]
    assert "goal 'state' is missing" in client.say("observe", obs=state(5.0))["error"]
    assert "does not predict chunks" in client.say("predict", history=[state(5.0)])["error"]


def test_chunks():
    client = Client()
    client.say("begin", lang="place")
    answer = client.say("predict", {"id": 3}, history=[state(1.0), state(4.0)])
    timing = {"queued_ms": 0.0, "infer_ms": 250.0, "together": 1}
    assert answer[HEADER] == {"kind": "chunk", "id": 3, **timing}
    assert answer["chunk"].tolist() == [[4, 2], [5, 2], [6, 2], [7, 2]]
    planned = np.zeros((3, 2), np.float32)
    client.say("predict", history=[state(1.0)], planned=planned, delay=2, guidance="prefix")
    first, second = client.desk.served.chunk_asks
    assert (first.planned, first.delay, first.guidance) == (None, 0, None)
    assert (second.planned.dtype, second.delay, second.guidance) == (np.float64, 2, "prefix")
    assert client.say("observe", obs=state(5.0))["action"].tolist() == [0, 5]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"history": []}, "history must be a list of 1 to 2 observations"),
        ({"history": [state(1.0)] * 3}, "history must be a list of 1 to 2"),
        ({"history": state(1.0)}, "history must be a list"),
        ({"history": [1]}, "an observation must be a map"),
        ({"planned": np.zeros((0, 2))}, "planned must be finite numbers of shape (n, 2)"),
        ({"planned": np.zeros((1, 3))}, "planned must be finite numbers"),
        ({"planned": np.zeros(2)}, "planned must be finite numbers"),
        ({"planned": [[0.0, 0.0]]}, "planned must be finite numbers"),
        ({"planned": np.full((1, 2), np.nan)}, "planned must be finite numbers"),
        ({"delay": -1}, "delay: got -1; wanted a whole number of at least 0"),
        ({"delay": 1.0}, "delay: got 1.0"),
        ({"delay": True}, "delay: got True"),
        ({"guidance": 3}, "guidance must be text"),
    ],
)
def test_chunks_that_cannot_be_predicted(message, words):
    client = Client()
    answer = client.say("predict", {"id": 4}, **{"history": [state(1.0)], **message})
    assert answer[HEADER] == {"kind": "error", "id": 4} and answer["error"].startswith(words)
    assert client.counts() == (0, 0, 1)


def test_errors_are_one_line_and_the_session_goes_on(caplog):
    client = Client()
    cases = [
        ({"kind": "observe"}, "an observation must be a map of arrays"),
        ({"kind": "begin", "lang": 3}, "an instruction must be text"),
        ({"kind": "begin", "lang": "push"}, "the instruction 'push' is unknown"),
        ({"kind": "x" * 30}, f"a message of kind '{'x' * 20}' is unknown"),
        ({"kind": "observe", "obs": state(1.0, 13.0)}, "the server failed to predict; its log"),
    ]
    for case, words in cases:
        assert client.say(case.pop("kind"), **case)["error"].startswith(words)
    assert [record.getMessage() for record in caplog.records] == ["a prediction failed"]
    assert client.counts() == (0, 0, 5)
    assert client.say("observe", obs=state(1.0))["action"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("header", "words"), [([1], "the header of a message must be a map"), ({}, "must be text")]
)
def test_what_is_no_message_ends_the_session(header, words):
    with pytest.raises(WireError, match=words):
        Client().all({HEADER: header})


def test_of_those_that_wait_the_newest_of_a_kind_is_answered():
    client = Client()
    kinds = ["observe", "predict", "ping", "observe", "ping", "observe", "predict"]
    messages = [
        {HEADER: {"kind": kind, "id": n}, "obs": state(n), "history": [state(n)]}
        for n, kind in enumerate(kinds)
    ]
    messages.insert(1, state(2.0))  # openpi's, which is always answered
    answers = client.all(*messages)
    found = [answer[HEADER]["kind"] for answer in answers if HEADER in answer]
    assert found == ["dropped", "dropped", "pong", "dropped", "pong", "action", "chunk"]
    assert [answer[HEADER]["id"] for answer in answers if HEADER in answer] == [*range(7)]
    assert client.counts() == (3, 3, 0)


def test_openpi_s_messages_plan_anew_each_time():
    client = Client()
    first, second, third = (client.all({**state(n), "prompt": "pick"})[0] for n in (1.0, 2.0, 3.0))
    assert first["actions"].tolist() == [[100, 101], [101, 102], [102, 103], [103, 104]]
    assert second["actions"][0].tolist() == [201, 202]
    assert first["server_timing"] == {"infer_ms": 250.0, "queued_ms": 0.0}
    assert third["server_timing"] == {"infer_ms": 250.0, "queued_ms": 0.0, "prev_total_ms": 250.0}
    (other,) = client.all({**state(1.0), "prompt": "place"})
    assert other["actions"][0].tolist() == [100, 101]  # another instruction begins an episode
    for bad, words in (
        ({"prompt": 3}, "an instruction must be text"),
        ({"state": 1.0}, "has shape ()"),
    ):
        (line,) = client.session.answers([{**state(1.0), "prompt": "place", **bad}])
        assert words in line
    assert client.counts() == (4, 0, 2)


def test_metadata_of_a_session():
    served = Small()
    found = Desk(served).metadata(5, 1000)[HEADER]
    assert (found["protocol"], found["session"], found["max_bytes"]) == (1, 5, 1000)
    assert found["schema_hash"] == served.schema.hash and "weights" not in found
    assert found["jpeg"] is True
    served.weights = "abc"
    assert Desk(served).metadata(5, 1000)[HEADER]["weights"] == "abc"


def test_errors_in_one_line():
    assert one_line(UserError("a\n b\tcaf\u00e9")) == "a b caf?"
    assert len(one_line(UserError("x" * 900))) == 500 and one_line(UserError("abc"), 2) == "ab"
