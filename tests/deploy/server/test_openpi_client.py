"""openpi's own client, from the package index, drives our server."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from imitate.deploy.schema import ObservedKey
from tests.deploy.counting_policy import SCHEMA, Counter, observation

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="openpi-client wants numpy<2, which has no wheels for 3.13"
)
TOKEN = "0123456789abcdef"


@pytest.fixture
def client_of():
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    clients = []

    def make(server, **rest):
        clients.append(WebsocketClientPolicy("127.0.0.1", server.port, **rest))
        return clients[-1]

    yield make
    for client in clients:
        client._ws.close()


def test_it_gets_chunks_that_are_planned_anew(server, client_of):
    client = client_of(server)
    assert client.get_server_metadata()["imitate"]["schema"]["chunk"] == 4
    for step in range(3):
        reply = client.infer({**observation(0.5), "prompt": "pick"})
        assert reply["actions"].shape == (4, 2)
        assert reply["actions"][0].tolist() == [step + 100 * (step + 1), 100 * (step + 1) + 0.5]
        assert reply["server_timing"]["infer_ms"] >= 0
    assert "prev_total_ms" in reply["server_timing"]


def test_its_broker_plays_a_chunk(server, client_of):
    from openpi_client.action_chunk_broker import ActionChunkBroker

    broker = ActionChunkBroker(client_of(server), action_horizon=3)
    broker.reset()
    actions = [broker.infer(observation())["actions"][0] for _ in range(4)]
    assert actions == [100, 101, 102, 201]


def test_large_observations_arrive_whole(client_of, server_of):
    seen = []

    class Watching(Counter):
        schema = replace(
            SCHEMA,
            observations={"state": ObservedKey((2,)), "camera": ObservedKey((1001, 1003, 3))},
        )

        def predict(self, asks):
            seen.extend(ask.obs["camera"] for ask in asks)
            return super().predict(asks)

    picture = np.random.default_rng(0).integers(0, 256, (1001, 1003, 3), dtype=np.uint8)
    client_of(server_of(Watching())).infer({**observation(), "camera": picture})
    np.testing.assert_array_equal(seen[0], picture)


def test_errors_are_one_line_and_the_session_goes_on(server, client_of):
    client = client_of(server)
    for obs, words in (
        ({"state": np.zeros(2)}, "'camera' is missing"),
        ({**observation(), "prompt": "throw"}, "known are pick, place"),
        (observation(0.0, 13.0), "its log contains the reason"),
    ):
        with pytest.raises(RuntimeError, match=words) as caught:
            client.infer(obs)
        assert "secret" not in str(caught.value)
    assert client.infer(observation(0.5))["actions"].shape == (4, 2)


def test_its_api_key_is_the_token(client_of, server_of):
    server = server_of(Counter(), token=TOKEN)
    assert client_of(server, api_key=TOKEN).infer(observation())["actions"].shape == (4, 2)
    with pytest.raises(Exception, match="401"):
        client_of(server, api_key="wrong")


def test_two_of_them_have_memories_of_their_own(server, client_of):
    one, other = client_of(server), client_of(server)
    one.infer(observation())
    one.infer(observation())
    assert other.infer(observation())["actions"][0, 0] == 100
