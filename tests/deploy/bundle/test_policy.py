"""Policy of a bundle with a network of a few lines: its memory, its plan, and what an episode begins with."""

from types import SimpleNamespace as Words

import numpy as np
import pytest

from imitate.deploy.bundle import policy as module
from imitate.deploy.bundle.policy import BundlePolicy, ServedBundle
from imitate.deploy.bundle.spec import Execution, Noise
from imitate.deploy.schema import ObservedKey, Schema
from imitate.errors import BundleError, MissingPackageError, NotFiniteError, UserError
from imitate.system.instructions import Instructions
from tests.refusals import refused


class Network:
    """Plans 10 x the observation, +1 for each step; notes what it is asked. The memory counts observations."""

    any_noise = "any"

    def __init__(self, made, threads):
        self.made, self.threads = made, threads
        self.spec, self.instructions = made.spec, made.instructions
        self.memory = dict.fromkeys(made.spec.memory, 0)
        self.asked = []
        made.network = self

    def replay(self, bundle):
        if self.made.error is not None:
            raise self.made.error

    def observe(self, frames, ob, lang_emb):
        self.lang_emb = lang_emb
        return (*frames, float(ob["s"]))[-self.spec.frames :]

    def goal(self, goal):
        return goal or {}

    def predict(self, frames, goal, memory, noise):
        self.asked.append((frames, goal, dict(memory), noise))
        execution = self.spec.execution
        count = 1 if execution is None else execution.size
        chunk = 10.0 * frames[-1] + np.arange(count)[:, None]
        return chunk, {name: value + 1 for name, value in memory.items()}


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(module, "read_bundle", lambda path: made)
    monkeypatch.setattr(module, "Network", Network)
    monkeypatch.setattr(
        module, "NoiseSource", lambda noise, seed: Words(draw=lambda: f"drawn {seed}")
    )
    made = Words(error=None)

    def build(
        *, execution=None, frames=1, memory=(), cut=(), instructions=None, goals=(), **options
    ):
        observed = {"s": ObservedKey(())}
        schema = Schema(
            observed,
            1,
            (-50.0,),
            (50.0,),
            rate_hz=20.0,
            goals=dict.fromkeys(goals, ObservedKey(())),
        )
        made.spec = Words(schema=schema, execution=execution, frames=frames, noise=Noise(0, 0))
        made.spec.memory, made.spec.cut = dict.fromkeys(memory), set(cut)
        made.instructions = instructions
        policy = BundlePolicy("b.zip", **options)
        policy.made = made
        return policy, made.network

    return build


def test_what_a_bundle_says_of_itself(make):
    policy, network = make(goals=("g",))
    assert (policy.obs_keys, policy.goal_keys, policy.control_freq) == (("s",), ("g",), 20.0)
    assert [limit.tolist() for limit in policy.limits] == [[-50.0], [50.0]]
    assert policy.number_names is policy.schema.names
    assert (policy.history, network.threads, policy.can_be_guided) == (1, 1, False)
    assert policy({"s": 1}, {"g": 2}).tolist() == [10.0] and policy.planned_actions() is None
    assert network.asked == [((1.0,), {"g": 2}, {}, "drawn None")]
    policy.seed(7)
    policy({"s": 1})
    assert network.asked[-1][3] == "drawn 7"
    assert make(seed=3, threads=4)[1].threads == 4


@pytest.mark.parametrize(("clip", "action"), [({}, 50.0), ({"clip": False}, 90.0)])
def test_actions_are_clipped(make, clip, action):
    policy, _ = make(**clip)
    assert policy({"s": 9}).tolist() == [action] and policy({"s": -9}).tolist() == [-action]
    state = policy.state
    with pytest.raises(NotFiniteError):
        policy({"s": np.nan})
    assert policy.state is state


def test_chunks_are_executed_and_cut(make):
    policy, network = make(execution=Execution(size=4, execute=2))
    assert [policy({"s": x}).item() for x in (1, 2, 3)] == [10.0, 11.0, 30.0]
    assert policy.planned_actions()[:, 0].tolist() == [30.0, 31.0, 32.0, 33.0]
    policy.planned_actions()[:] = 0.0
    policy.cut_plan()
    assert policy({"s": 4}).item() == 40.0
    assert [frames for frames, *_ in network.asked] == [(1.0,), (3.0,), (4.0,)]
    policy.start_episode()
    assert policy.planned_actions() is None and policy({"s": 1}).item() == 10.0


def test_a_memory_sees_every_observation_and_is_cut_in_part(make):
    policy, network = make(execution=Execution(size=4, execute=2), memory=("h", "p"), cut=("p",))
    for x in (1, 2):
        policy({"s": x})
    assert [noise for *_, noise in network.asked] == ["drawn None", "any"]
    assert policy.state.memory == {"h": 2, "p": 2}
    policy.cut_plan()
    assert policy.state.memory == {"h": 2, "p": 0}
    with refused("has a memory beyond its last observations", error=UserError):
        policy.predict_chunk([{"s": 1}])


def test_a_chunk_leaves_the_memory_alone(make):
    policy, network = make(execution=Execution(size=2, execute=1), frames=2)
    policy({"s": 9})
    state = policy.state
    chunk = policy.predict_chunk([{"s": 7}, {"s": 1}, {"s": 2}])
    assert chunk[:, 0].tolist() == [20.0, 21.0] and network.asked[-1][0] == (1.0, 2.0)
    assert policy.state is state
    with refused("history is empty", error=UserError):
        policy.predict_chunk([])
    with refused("cannot be guided", error=UserError):
        policy.predict_chunk([{"s": 1}], planned=[[1.0]])
    with refused("the policy has goals (g)", error=UserError):
        make(goals=("g",))[0].predict_chunk([{"s": 1}])


def test_a_single_instruction_need_not_be_named(make):
    policy, network = make(instructions=Instructions.one_hot(["lift"]))
    policy({"s": 1})
    assert network.lang_emb.tolist() == [1.0]
    policy, network = make(instructions=Instructions.one_hot(["lift", "push"]))
    assert policy.state.lang_emb is None
    policy.start_episode("push")
    policy.predict_chunk([{"s": 1}])
    assert network.lang_emb.tolist() == [0.0, 1.0] and policy.lang == "push"


def test_errors_name_the_file(make):
    policy, _ = make()
    policy.made.error = UserError("other actions")
    with refused("b.zip: other actions", error=BundleError):
        make()
    policy.made.error = MissingPackageError("no onnxruntime")
    with refused("no onnxruntime", error=MissingPackageError):
        make()


def test_a_server_has_a_memory_for_each_session(make):
    policy, network = make(execution=Execution(size=2, execute=2))
    served = ServedBundle(policy, "w")
    assert (served.weights, served.schema) == ("w", policy.schema)
    first, second = served.begin(None), served.begin(None)
    asks = [Words(state=state, obs={"s": x}, goal=None) for state, x in ((first, 1), (second, 2))]
    answers = served.predict(asks)
    assert [answer.action.item() for answer in answers] == [10.0, 20.0]
    assert [answer.chunk[:, 0].tolist() for answer in answers] == [[10.0, 11.0], [20.0, 21.0]]
    again = [Words(state=answer.state, obs={"s": 3}, goal=None) for answer in answers]
    again[1].state = served.cut(again[1].state)
    assert [answer.action.item() for answer in served.predict(again)] == [11.0, 30.0]


@pytest.mark.parametrize(("emb", "keys"), [(None, {"s"}), (np.ones(1), {"s", "lang_emb"})])
def test_chunks_of_sessions_have_their_instruction(make, monkeypatch, emb, keys):
    policy, _ = make(execution=Execution(size=2, execute=2))
    seen = []
    monkeypatch.setattr(
        policy, "predict_chunk", lambda history, planned: seen.append(history) or "chunk"
    )
    ask = Words(state=Words(lang_emb=emb), history=[{"s": 1}, {"s": 2}], planned=None)
    assert ServedBundle(policy).predict_chunks([ask]) == ["chunk"]
    assert [set(ob) for ob in seen[0]] == [keys] * 2
