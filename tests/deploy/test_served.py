"""A served policy acts as the policy itself, alone and in a batch with other sessions."""

import numpy as np
import pytest
import torch

from imitate import RolloutPolicy, algo_factory, load_config
from imitate.data.language import Instructions
from imitate.deploy.client import RemotePolicy
from imitate.deploy.served import ServedPolicy, schema_of
from imitate.deploy.server import Ask, PolicyServer
from imitate.errors import NotFiniteError, UserError

SHAPES = {
    "robot0_eef_pos": (3,),
    "robot0_eef_quat": (4,),
    "robot0_gripper_qpos": (2,),
    "object": (10,),
}


def policy_of(name, **overrides):
    torch.manual_seed(0)
    config = load_config(f"configs/{name}.json").with_overrides(
        {"experiment.epoch_every_n_steps": 10, **overrides}
    )
    shapes = {key: SHAPES.get(key, (4,)) for key in config.observation.modality_of("obs")}
    algo = algo_factory(config.algo_name, config, shapes, 7, "cpu")
    return RolloutPolicy(algo, -np.ones(7), np.ones(7), control_freq=20.0)


def observations(policy, count, seed=0):
    rng = np.random.default_rng(seed)
    shapes = policy.algo.preprocess.raw_shapes
    return [
        {k: rng.normal(size=shapes[k]).astype(np.float32) for k in policy.obs_keys}
        for _ in range(count)
    ]


NAMES = ["bc/bc", "bc/bc_rnn", "act/act", "dt/dt", "bc/bc_transformer"]


@pytest.mark.parametrize("name", NAMES)
def test_over_the_wire_as_in_process(name):
    policy, twin = policy_of(name), policy_of(name)
    obs = observations(policy, 12)
    twin.start_episode()
    expected = [twin(ob) for ob in obs]
    with PolicyServer(ServedPolicy(policy), port=0) as server, RemotePolicy(server.url) as remote:
        assert remote.control_freq == 20.0
        assert remote.obs_keys == policy.obs_keys
        remote.start_episode()
        got = [remote(ob) for ob in obs]
        if twin.planned_actions() is not None:
            np.testing.assert_allclose(
                remote.planned_actions(), twin.planned_actions()[0], atol=1e-5
            )
    np.testing.assert_allclose(got, expected, atol=1e-5)


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
    config = load_config("configs/bc/bc.json").with_overrides(
        {
            "experiment.epoch_every_n_steps": 10,
            "observation.modalities.obs.low_dim": ["object", "lang_emb"],
        }
    )
    torch.manual_seed(0)
    algo = algo_factory("bc", config, {"object": (10,), "lang_emb": (3,)}, 7, "cpu")
    known = Instructions(("pick", "place"), np.eye(3, dtype=np.float32)[:2])
    policy = RolloutPolicy(algo, -np.ones(7), np.ones(7), known)
    twin = RolloutPolicy(algo, -np.ones(7), np.ones(7), known)
    served = ServedPolicy(policy)
    assert served.schema.languages == ("pick", "place")
    assert "lang_emb" not in served.schema.observations
    ob = {"object": np.ones(10, np.float32)}
    replies = served.predict([Ask(served.begin(lang), ob, {}, lang) for lang in ("pick", "place")])
    for lang, reply in zip(("pick", "place"), replies, strict=True):
        twin.start_episode(lang)
        np.testing.assert_allclose(reply.action, twin(ob), atol=1e-6)
    assert np.abs(replies[0].action - replies[1].action).max() > 1e-4
    with pytest.raises(UserError, match="pick"):
        served.begin("throw")


def test_a_session_with_nan_fails_alone():
    policy = policy_of("bc/bc")
    served = ServedPolicy(policy)
    good, bad = observations(policy, 2)
    bad["object"][0] = np.nan
    with pytest.raises(NotFiniteError, match="object"):
        served.predict([Ask(served.begin(None), bad, {}, None)])
    server = PolicyServer(ServedPolicy(policy), port=0)
    with server, RemotePolicy(server.url) as one, RemotePolicy(server.url) as other:
        other(good)
        with pytest.raises(UserError, match="object"):
            one(bad)
        one(good)
        other(good)


def test_the_schema_tells_shapes_limits_and_chunks():
    schema = schema_of(policy_of("act/act"))
    assert schema.action_low == (-1.0,) * 7
    assert schema.chunk > 1
    assert schema.algorithm == "act"
    assert all(spec.kind == "low_dim" for spec in schema.observations.values())
