"""RolloutPolicy: raw values in, raw values out, each with its own memory."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import imitate
from imitate import RolloutPolicy, policy_from_checkpoint
from imitate.errors import NotFiniteError, UserError
from imitate.functional.kernels import PackedLinear
from imitate.models.precision import CPU_COMPUTES_BF16
from imitate.policy import loading
from imitate.policy.checkpoint import checkpoint_dict
from imitate.policy.uncertainty import Calibration
from imitate.system.instructions import Instructions
from tests.tiny import tiny_algo, tiny_checkpoint

PACKAGE = f"{Path(imitate.__file__).parent}/"
SHAPES = {"pos": 3, "vel": 2}


def make_algo(overrides=(), seed=0, goal=False):
    goals = ("pos",) if goal else ()
    return tiny_algo("bc", *overrides, obs=SHAPES, action=2, seed=seed, goal=goals)


RNN = ("algo.rnn.enabled=true", "train.seq_length=10")
SIZES = ("algo.chunk.size=4", "algo.chunk.execute=4", "train.seq_length=4")
WIDE = ("algo.actor_layer_dims=[256, 256]",)
CHUNK = ("algo.chunk.enabled=true", *SIZES)


def observation(seed=0, batch=None):
    rng = np.random.default_rng(seed)
    lead = () if batch is None else (batch,)
    return {"pos": rng.normal(size=(*lead, 3)), "vel": rng.normal(size=(*lead, 2)), "extra": "x"}


def test_actions_are_float64_and_clipped_to_the_limits():
    action = RolloutPolicy(make_algo())(observation())
    assert (action.dtype, action.shape) == (np.float64, (2,))
    policy = RolloutPolicy(make_algo(), action_low=[-1e-3, -1e-3], action_high=[1e-3, 1e-3])
    assert np.abs(policy(observation())).max() == 1e-3


def test_a_policy_describes_itself_in_the_names_of_its_caller():
    policy = RolloutPolicy(
        make_algo(),
        action_low=[-1.0, -2.0],
        number_names={"pos": ["x", "y", "z"], "actions": ["a", "b"]},
        rename={"place": "pos"},
        ranges={"pos": {"min": 0}, "other": {}},
    )
    assert [limit.tolist() for limit in policy.limits] == [[-1.0, -2.0], [np.inf, np.inf]]
    assert policy.number_names == {"place": ("x", "y", "z"), "actions": ("a", "b")}
    assert policy.ranges == {"place": {"min": 0}, "other": {}}
    assert (policy.obs_keys, policy.goal_keys) == (("place", "vel"), ())
    assert policy.raw_shapes == {"place": (3,), "vel": (2,)}
    assert policy.modalities == {"place": "low_dim", "vel": "low_dim"}
    assert (policy.history, policy.max_prefix, policy.uncertainty_rank) == (1, 0, None)
    free = RolloutPolicy(make_algo(), action_high=0.5)
    assert [limit.tolist() for limit in free.limits] == [[-np.inf] * 2, [0.5, 0.5]]


def test_masked_values_of_a_sensor_do_not_reach_the_policy():
    policy, bad = RolloutPolicy(make_algo()), observation()
    bad["pos"] = np.ma.array(bad["pos"], mask=[False, True, False])
    for use in (policy, policy.check):
        with pytest.raises(UserError, match="'pos' .* 1 of its values are masked"):
            use(bad)


@pytest.mark.parametrize("overrides", [(), RNN], ids=["mlp", "rnn"])
def test_a_batch_acts_as_its_rows_do(overrides):
    algo = make_algo(overrides)
    batched, single = RolloutPolicy(algo), [RolloutPolicy(algo) for _ in range(3)]
    for step in range(12):
        obs = observation(step, batch=3)
        rows = [{key: obs[key][i] for key in SHAPES} for i in range(3)]
        expected = [policy(row) for policy, row in zip(single, rows, strict=True)]
        np.testing.assert_allclose(batched(obs, batched_ob=True), expected, atol=1e-6)


def test_start_episode_with_a_mask_resets_those_rows_alone():
    policy, obs = RolloutPolicy(make_algo(RNN)), observation(batch=2)
    first, second = (policy(obs, batched_ob=True) for _ in range(2))
    assert not np.allclose(first, second)
    policy.start_episode(mask=[True, False])
    third = policy(obs, batched_ob=True)
    np.testing.assert_allclose(third[0], first[0], atol=1e-6)
    assert not np.allclose(third[1], first[1])


class TestInstructions:
    """pos stands in for the state, lang_emb has one number per task."""

    @pytest.fixture
    def policy(self):
        algo = tiny_algo(obs={"pos": 3, "lang_emb": 2}, action=2)
        return RolloutPolicy(algo, instructions=Instructions.one_hot(["lift", "push"]))

    def test_the_instruction_becomes_the_observation(self, policy):
        obs = {"pos": np.ones(3)}
        assert policy.obs_keys == ("pos",)
        for name, vector in (("lift", [1.0, 0.0]), ("push", [0.0, 1.0])):
            policy.start_episode(name)
            expected = policy({**obs, "lang_emb": np.array(vector)})
            np.testing.assert_array_equal(policy(obs), expected)
        assert policy.lang == "push"

    def test_it_must_be_said_and_known(self, policy):
        policy.start_episode()
        with pytest.raises(UserError, match=r"name one with start_episode\(lang=...\): 'lift'"):
            policy({"pos": np.ones(3)})
        with pytest.raises(UserError, match="'fold' is not known; known: 'lift'; 'push'"):
            policy.start_episode("fold")
        policy.instructions = Instructions.one_hot(list("abcdefghijk"))
        policy.start_episode()
        with pytest.raises(UserError, match="'i'; 'j'$"):
            policy({"pos": np.ones(3)})

    def test_rows_of_a_batch_may_be_told_different_things(self, policy):
        obs = {"pos": np.ones((3, 3))}
        policy.start_episode("lift")
        lift = policy(obs, batched_ob=True)
        policy.start_episode("push", mask=[False, True, True])
        policy.start_episode(mask=[True, False, True])  # a new episode of the same task
        mixed = policy(obs, batched_ob=True)
        policy.start_episode("push")
        push = policy(obs, batched_ob=True)
        np.testing.assert_allclose(mixed, [lift[0], push[1], push[2]], atol=1e-6)
        assert np.abs(lift - push).max() > 1e-4


def test_two_policies_in_one_process_stay_themselves():
    one, other = RolloutPolicy(make_algo(RNN, seed=0)), RolloutPolicy(make_algo((), seed=1))
    alone = [one(observation(s)) for s in range(4)]
    one.start_episode()
    for step in range(4):
        other(observation(step + 10))
        np.testing.assert_array_equal(one(observation(step)), alone[step])


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        ({"pos": np.zeros(3)}, r"needs vel.*got pos"),
        (np.zeros(3), r"a dict of observations \{'pos': array, 'vel': array\}, but got ndarray"),
        ({"pos": np.zeros(3), "vel": np.zeros(5)}, "vel"),
        ({"pos": np.zeros(3), "vel": np.array(["a", "b"])}, "'vel' has dtype <U1; expected num"),
        ({"pos": np.zeros((5, 3)), "vel": np.zeros((5, 2))}, "stacked as 1 frame;"),
    ],
    ids=["missing", "array", "shape", "words", "frames"],
)
def test_an_observation_that_does_not_fit_is_named(obs, words):
    with pytest.raises(UserError, match=words):
        RolloutPolicy(make_algo())(obs)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_an_image_that_is_read_backwards_is_the_same_as_its_copy(kind):
    policy = RolloutPolicy(tiny_algo("bc", obs={"s": 3, "image": (3, 16, 16)}))
    frame = np.random.default_rng(0).integers(256, size=(16, 16, 3), dtype=np.uint8)
    state = np.arange(3.0)
    acted = [
        policy({"s": kind(state[::-1].copy()), "image": image})
        for image in (frame[..., ::-1], frame[..., ::-1].copy())
    ]
    assert np.array_equal(*acted) and not np.array_equal(
        acted[0], policy({"s": state, "image": frame})
    )


def test_a_changed_batch_size_is_refused():
    policy = RolloutPolicy(make_algo(RNN))
    policy(observation(batch=2), batched_ob=True)
    with pytest.raises(UserError, match="start_episode"):
        policy(observation(batch=3), batched_ob=True)


def test_a_goal_policy_asks_for_its_goal_and_has_no_chunks():
    policy = RolloutPolicy(make_algo(goal=True))
    with pytest.raises(UserError, match="pos"):
        policy(observation())
    with pytest.raises(UserError, match=r"has goals \(pos\)"):
        policy.predict_chunk([{"pos": np.zeros(3)}])
    one = policy(observation(), goal={"pos": np.zeros(3)})
    assert not np.allclose(one, policy(observation(), goal={"pos": np.ones(3)}))


def test_an_action_of_a_plain_policy_is_computed_in_few_files():
    algo = make_algo(WIDE)
    algo.preprocess.set_obs_normalization("vel", torch.ones(2), torch.full((2,), 3.0))
    policy, _ = policy_from_checkpoint(
        device="cpu", ckpt_dict=checkpoint_dict(algo, env_metadata={}, shape_metadata={})
    )
    policy(observation())
    entered, before = set(), sys.getprofile()

    def note(frame, event, arg):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE):
            entered.add(path.removeprefix(PACKAGE))

    sys.setprofile(note)
    policy(observation(1))
    sys.setprofile(before)
    assert "policy/rollout_policy.py" in entered and len(entered) <= 14, sorted(entered)


def test_loading_sets_nothing_global(tmp_path):
    path = tiny_checkpoint(tmp_path / "model.pth", obs=SHAPES, action=2)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    policy_from_checkpoint(device="cpu", ckpt_path=path)
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads


def test_what_was_planned_can_be_read_in_the_units_of_the_data():
    algo = make_algo((*CHUNK, "algo.chunk.execute=2"))
    policy = RolloutPolicy(algo, [-0.1, -0.1], [0.1, 0.1])
    assert policy.planned_actions() is None
    first = policy(observation())
    assert policy.last_extras["chunk"].shape == (1, 4, 2)
    with pytest.raises(TypeError):
        policy.last_extras["chunk"] = 0
    planned = policy.planned_actions()
    assert planned.shape == (1, 4, 2)
    assert (planned[0, 0] == first).all()
    assert np.abs(planned).max() <= 0.1
    second = policy(observation(1))
    assert (second == planned[0, 1]).all()
    assert (policy.planned_actions()[0, :3] == planned[0, 1:]).all()
    policy.start_episode()
    single = RolloutPolicy(make_algo())
    single(observation())
    assert policy.planned_actions() is single.planned_actions() is None
    assert single.keypoints(observation()) == {}


class TestPrecision:
    """Checkpoint of a policy with a layer of 256 x 256 numbers, as it is loaded."""

    @pytest.fixture
    def ckpt(self):
        return checkpoint_dict(make_algo(WIDE), env_metadata={}, shape_metadata={})

    def act(self, ckpt, **how):
        policy, _ = policy_from_checkpoint("cpu", ckpt_dict=ckpt, **how)
        return policy, policy(observation(batch=3), batched_ob=True)

    def test_large_layers_are_packed(self, ckpt):
        policy, action = self.act(ckpt)
        packed = [m for m in policy.algo.nets.modules() if isinstance(m, PackedLinear)]
        assert [layer.dtype for layer in packed] == [torch.float32]
        expected = RolloutPolicy(make_algo(WIDE))(observation(batch=3), batched_ob=True)
        np.testing.assert_allclose(action, expected, atol=1e-6)

    @pytest.mark.parametrize(
        ("precision", "words"),
        [
            ("bf16", "precision 'bf16' needs a CPU that supports it"),
            ("int8", "precision 'int8' needs an x86 CPU"),
            ("int4", "expected one of fp32, bf16, int8"),
        ],
    )
    def test_what_this_processor_is_slow_at_is_refused(self, ckpt, monkeypatch, precision, words):
        monkeypatch.setattr(loading, "has_fast_bf16", lambda device: False)
        monkeypatch.setattr(loading, "has_int8", lambda: False)
        with pytest.raises(UserError, match=words):
            self.act(ckpt, precision=precision)

    @pytest.mark.parametrize(
        ("precision", "possible"), [("bf16", CPU_COMPUTES_BF16), ("int8", loading.has_int8())]
    )
    def test_rounded_weights_act_nearly_the_same(self, ckpt, monkeypatch, precision, possible):
        if not possible:
            pytest.skip("an x86 processor, for bf16 with AVX-512")
        monkeypatch.setattr(loading, "has_fast_bf16", lambda device: True)
        difference = np.abs(self.act(ckpt, precision=precision)[1] - self.act(ckpt)[1]).max()
        assert 0 < difference < 0.02


class TestNotFinite:
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
    @pytest.mark.parametrize("overrides", [(), RNN, CHUNK], ids=["mlp", "rnn", "chunk"])
    def test_an_observation_is_refused_and_leaves_no_trace(self, overrides, value):
        algo = make_algo(overrides)
        policy, undisturbed = RolloutPolicy(algo), RolloutPolicy(algo)
        for step in range(6):
            obs = observation(step)
            if step in (0, 2, 3):  # at the start of an episode, and within
                bad = {**obs, "vel": np.array([0.5, value])}
                with pytest.raises(NotFiniteError, match=r"'vel' has 1 value .*first .* at \[1\]"):
                    policy(bad)
            np.testing.assert_array_equal(policy(obs), undisturbed(obs))

    def test_the_rows_of_a_batch_are_named(self):
        obs = observation(batch=3)
        obs["pos"][1, 2] = np.nan
        with pytest.raises(NotFiniteError, match=r"'pos' .*first nan at \[2\] of row 1") as caught:
            RolloutPolicy(make_algo())(obs, batched_ob=True)
        assert caught.value.rows == (False, True, False)

    @pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
    def test_goals_tensors_and_lists_are_checked(self, kind):
        policy = RolloutPolicy(make_algo(goal=True))
        with pytest.raises(NotFiniteError, match="'pos'"):
            policy(observation(), goal={"pos": kind([0.0, float("nan"), 0.0])})

    def test_large_values_that_float32_holds_are_let_through(self):
        policy = RolloutPolicy(make_algo())
        obs = {"pos": np.full(3, 1e30), "vel": np.array([7, -3], dtype=np.int64)}
        with np.errstate(all="raise"):
            assert np.isfinite(policy(obs)).all()

    def test_an_action_is_never_returned_even_where_limits_would_hide_it(self):
        algo = make_algo()
        policy = RolloutPolicy(algo, [-1.0, -1.0], [1.0, 1.0])
        algo.preprocess.action_offset[1] = float("inf")
        algo.preprocess.load_state_dict(algo.preprocess.state_dict())
        with pytest.raises(NotFiniteError, match=r"action has 1 value .* at \[1\]"):
            policy(observation())
        assert dict(policy.last_extras) == {}


class TestImages:
    @pytest.fixture
    def policy(self):
        core = {"core_class": "VisualCore", "core_kwargs": {"backbone_class": "ShallowConv"}}
        kinds = {"obs": {"low_dim": [], "rgb": ["camera"], "depth": ["far"]}}
        seen = {"modalities": kinds, "encoder": {"rgb": core, "depth": core}}
        shapes = {"camera": (3, 32, 32), "far": (1, 32, 32)}
        return RolloutPolicy(tiny_algo(obs=shapes, action=2, hidden=(8,), observation=seen))

    def image(self, dtype=np.uint8):
        rng = np.random.default_rng(0)
        camera = rng.integers(256, size=(32, 32, 3)).astype(dtype)
        return {"camera": camera, "far": np.full((32, 32, 1), 3.5, np.float32)}  # metres

    def test_pixels_and_fractions_are_the_same(self, policy):
        raw = self.image()
        fractions = {**raw, "camera": raw["camera"].astype(np.float32) / 255}
        np.testing.assert_allclose(policy(raw), policy(fractions), atol=1e-6)
        np.testing.assert_array_equal(policy(raw), policy(self.image(np.int64)))

    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
    def test_floats_beyond_one_are_refused(self, policy, dtype):
        words = "'camera' has float.* to 255; expected uint8 from 0 to"
        with pytest.raises(UserError, match=words):
            policy(self.image(dtype))
        assert policy.state is None

    def test_so_are_images_around_zero_and_wide_integers(self, policy):
        raw = self.image()
        for wrong in (raw["camera"] / 127.5 - 1, raw["camera"].astype(np.int32) * 256):
            with pytest.raises(UserError, match="image 'camera'"):
                policy({**raw, "camera": wrong})

    def test_a_nan_in_an_image_is_named(self, policy):
        raw = self.image()
        raw["far"][3, 4, 0] = np.nan
        with pytest.raises(NotFiniteError, match=r"'far' has 1 value .* at \[3, 4, 0\]"):
            policy(raw)

    def test_a_policy_that_learned_from_such_floats_takes_them(self, policy):
        """Its normalization says so."""
        half = torch.full((3,), 127.5)
        policy.algo.preprocess.set_obs_normalization("camera", half, half)
        assert np.isfinite(policy(self.image(np.float32))).all()


LAYERS = {"enabled": "true", "context_length": 4, "embed_dim": 16, "num_layers": 1, "num_heads": 2}
TRANSFORMER = tuple(f"algo.transformer.{key}={value}" for key, value in LAYERS.items())
TRANSFORMER += ("train.frame_stack=4", "train.seq_length=1")


class TestStackedFrames:
    """As robomimic's FrameStackWrapper gives them: the first observation repeated, then the latest ones."""

    def stacks(self, frames, batch=None, count=8):
        seen = [observation(0, batch)] * frames
        for step in range(count):
            seen = [*seen[1:], observation(step, batch)]
            axis = 0 if batch is None else 1
            yield seen[-1], {key: np.stack([one[key] for one in seen], axis) for key in SHAPES}

    @pytest.mark.parametrize("batch", [None, 2])
    @pytest.mark.parametrize(
        ("overrides", "frames"),
        [(TRANSFORMER, 4), (RNN, 10), (RNN, 1), (CHUNK, 4), ((), 1)],
        ids=["transformer", "rnn", "rnn one", "chunk", "mlp one"],
    )
    def test_actions_are_those_of_single_observations(self, overrides, frames, batch):
        algo = make_algo(overrides)
        single, stacked = RolloutPolicy(algo), RolloutPolicy(algo)
        batched = batch is not None
        for newest, stack in self.stacks(frames, batch):
            expected = single(newest, batched_ob=batched)
            np.testing.assert_array_equal(stacked(stack, batched_ob=batched), expected)

    def test_tensors_too(self):
        policy = RolloutPolicy(make_algo(TRANSFORMER))
        obs = {"pos": torch.ones(4, 3), "vel": torch.ones(4, 2)}
        first = policy(obs)
        policy.start_episode()
        np.testing.assert_array_equal(policy({"pos": torch.ones(3), "vel": torch.ones(2)}), first)

    @pytest.mark.parametrize(
        ("obs", "words"),
        [
            ({"pos": np.zeros((5, 3)), "vel": np.zeros((5, 2))}, r"'pos' has shape \(5, 3\)"),
            ({"pos": np.zeros((4, 3)), "vel": np.zeros(2)}, r"'vel' has shape \(2,\)"),
            ({"pos": np.zeros((2, 4, 3)), "vel": np.zeros((2, 4, 2))}, "'pos'.*batched_ob=True"),
        ],
        ids=["batch without a word", "one key alone", "both"],
    )
    def test_what_else_has_too_many_dimensions_is_refused_in_one_line(self, obs, words):
        policy = RolloutPolicy(make_algo(TRANSFORMER))
        with pytest.raises(UserError, match=words) as caught:
            policy(obs)
        assert "stacked as 1 or 4 frames" in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("overrides", [(), CHUNK, TRANSFORMER], ids=["mlp", "chunk", "transformer"])
def test_a_predicted_chunk_is_the_plan_of_a_new_episode(overrides):
    policy = RolloutPolicy(make_algo(overrides), [-0.1, -0.1], [0.1, 0.1])
    seen = [observation(step) for step in range(6)]
    for one in seen[-4:]:
        acted = policy(one)
    state = policy.state
    chunk = policy.predict_chunk(seen if overrides is TRANSFORMER else seen[-1:])
    assert policy.state is state and chunk.dtype == np.float64 and np.abs(chunk).max() <= 0.1
    assert chunk.shape == ((4, 2) if overrides is CHUNK else (1, 2))
    if overrides is not CHUNK:
        np.testing.assert_allclose(chunk[0], acted, atol=1e-6)
    batch = [{key: np.stack([one[key], one[key] + 1]) for key in SHAPES} for one in seen]
    both = policy.predict_chunk(batch, batched_ob=True)
    assert both.shape == (2, *chunk.shape)
    np.testing.assert_allclose(both[0], policy.predict_chunk(seen), atol=1e-6)
    fresh = RolloutPolicy(make_algo(overrides), [-0.1, -0.1], [0.1, 0.1])
    first = fresh(seen[0])
    np.testing.assert_allclose(fresh.predict_chunk(seen[:1])[0], first, atol=1e-6)


@pytest.mark.parametrize(
    ("overrides", "words", "how"),
    [
        ((), "an empty history: expected at least one observation", {"history": []}),
        ((), "planned actions need a single episode, but batched_ob is True",
         {"planned": [[0.0, 0.0]], "batched_ob": True}),
        (RNN, "bc has a memory beyond its last observations", {}),
    ],
)  # fmt: skip
def test_chunks_that_cannot_be_predicted(overrides, words, how):
    policy = RolloutPolicy(make_algo(overrides))
    with pytest.raises(UserError, match=words):
        policy.predict_chunk(**{"history": [observation()], **how})


def test_the_rank_of_an_uncertainty():
    policy = RolloutPolicy(make_algo(), calibration=Calibration.of([3.0, 1.0, 2.0], True))
    assert policy.uncertainty_rank is None
    policy.last_extras = {"uncertainty": torch.tensor([0.5, 2.5])}
    assert policy.uncertainty_rank.tolist() == [0.0, 0.5]
    policy.calibration = None
    assert policy.uncertainty_rank is None


def test_rewards_and_cuts_reach_the_algorithm_within_an_episode(monkeypatch):
    algo, heard = make_algo(RNN), []
    monkeypatch.setattr(algo, "observe_reward", lambda state, r: heard.append(r.tolist()) or state)
    monkeypatch.setattr(algo, "cut_plan", lambda state: heard.append("cut") or state)
    policy = RolloutPolicy(algo)
    policy.observe(1.0)
    policy.cut_plan()
    assert heard == []
    policy(observation(batch=2), batched_ob=True)
    policy.observe(1.5)
    policy.observe([1, 2])
    policy.cut_plan()
    assert heard == [[1.5, 1.5], [1.0, 2.0], "cut"]
    saved = policy.state
    policy.state = None
    policy.observe(1.0)
    policy.state = saved
    policy.observe(2)
    assert heard[3:] == [[2.0, 2.0]] and dict(policy.last_extras) == {}


def test_subgoals_are_in_the_units_of_the_data():
    algo = make_algo()
    algo.preprocess.set_obs_normalization("pos", torch.tensor([1.0, 2, 3]), torch.full((3,), 2.0))
    policy = RolloutPolicy(algo, rename={"place": "pos"})
    assert policy.subgoal() == {}
    policy.last_extras = {
        "subgoal/pos": torch.ones(2, 3),
        "subgoal/latent": torch.ones(2, 4),
        "chunk": torch.ones(2, 1, 2),
        "vel": torch.ones(2, 2),
    }
    (name,) = found = policy.subgoal()
    assert name == "place" and found[name].tolist() == [[3.0, 4.0, 5.0]] * 2


def test_a_single_instruction_need_not_be_said():
    algo = tiny_algo(obs={"pos": 3, "lang_emb": 1}, action=2)
    policy = RolloutPolicy(algo, instructions=Instructions.one_hot(["lift"]))
    obs = {"pos": np.ones(3)}
    first = policy(obs)
    np.testing.assert_array_equal(first, policy({**obs, "lang_emb": np.ones(1)}))
    policy.start_episode()
    np.testing.assert_array_equal(policy(obs), first)
    assert policy.lang is None
