"""Environments that raise, die, exit, hang or give NaN: their episodes are named and never count as success."""

import multiprocessing

import pytest

from imitate.errors import EnvError, EvaluationError
from imitate.evaluate.evaluate import EvalSettings, evaluate
from imitate.evaluate.worker import EpisodePool
from imitate.policy.loading import policy_from_checkpoint
from imitate.system.trust import trust_env
from imitate.train.trainer import train
from tests.train.conftest import config_dict, env_meta, write_demos, write_expert

pytestmark = pytest.mark.usefixtures("importable_env")

LIMIT_S = 2.0
VECTOR = {"mode": "vector", "workers": 2}
SHORT = {"horizon": 30}
TO_THE_END = {**SHORT, "terminate_on_success": False}
NAN = "observation 'pos' has 2 values not finite in float32"
HUNG = "() did not return within 2 s, in 2 tries"

FAULTS = [
    ({"raise_at": [1]}, "RuntimeError: the simulator is unstable", SHORT, ("here", "pool")),
    ({"exit_at": [1]}, "the environment or the policy called sys.exit(5)", SHORT, ("here", "pool")),
    ({"die_at": [1]}, "its process died in reset() (exit code 7)", SHORT, ("pool",)),
    ({"hang_in": "step", "hang_at": [1]}, f"step{HUNG}", SHORT, ("pool", "lockstep")),
    ({"hang_in": "reset", "hang_at": [1]}, f"reset{HUNG}", SHORT, ("lockstep",)),
    ({"nan_obs_at": [1]}, NAN, SHORT, ("here", "pool", "vector")),
    ({"nan_obs_at": [1]}, NAN, TO_THE_END, ("here", "pool", "vector")),
]


@pytest.fixture(scope="module")
def hung(tmp_path_factory):
    """A file of which environments may take the name, in the processes of the pool too."""
    path = tmp_path_factory.mktemp("hung") / "hung"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMITATE_TRUST_MODULES", f"point_mass,{path}")
        yield path


@pytest.fixture(scope="module")
def pool(importable_env, hung):
    with EpisodePool(2) as pool:
        yield pool


@pytest.fixture
def ways(pool, monkeypatch):
    """Pool and settings of the ways to play episodes; making an environment may take a minute on a busy machine."""
    monkeypatch.setattr("imitate.crew.serving.MAKE_FACTOR", 60.0 / LIMIT_S)
    watched = {"step_timeout_s": LIMIT_S}
    both = {**VECTOR, **watched}
    alone = {"here": (None, {}), "vector": (None, VECTOR)}
    return {**alone, "pool": (pool, watched), "lockstep": (pool, both)}


def play(path, way, meta=None, on_episode=None, **settings):
    pool, own = way
    return evaluate(path, meta, EvalSettings(**settings, **own), pool=pool, on_episode=on_episode)


def expert(tmp_path, **faults):
    meta = env_meta(**faults)
    trust_env(meta)
    return write_expert(tmp_path / "expert.pth", meta)


def hanging_once(tmp_path, where, hung):
    hung.unlink(missing_ok=True)
    return expert(tmp_path, hang_in=where, hang_once_file=str(hung), hang_at=[1])


@pytest.mark.slow("workers that hang or die are replaced")
@pytest.mark.parametrize(
    ("faults", "words", "how", "way"),
    [
        pytest.param(*fault, way, marks=pytest.mark.nightly if fault[1].startswith("reset") else ())
        for *fault, ways in FAULTS
        for way in ways
    ],
)
def test_an_episode_that_fails_is_named_and_the_others_go_on(
    tmp_path, ways, faults, words, how, way
):
    seen, path = [], expert(tmp_path, **faults)
    result = play(path, ways[way], on_episode=seen.append, episodes=3, **how)
    assert result.success == [True, False, True] and result.not_played == 1
    assert words in result.episodes[1].error
    warning = result.warnings[0]
    assert "episode 1 (seed 1) could not be played and counts as failed" in warning
    assert words in warning
    assert sorted(episode.index for episode in seen) == [0, 1, 2]


@pytest.mark.parametrize("where", ["reset", "render"])
def test_an_episode_that_hangs_once_is_played_again_and_that_is_told(tmp_path, ways, where, hung):
    path, video = hanging_once(tmp_path, where, hung), tmp_path / "episodes.mp4"
    result = play(path, ways["pool"], episodes=3, horizon=30, video=video)
    assert result.success == [True] * 3 and result.not_played == 0
    assert result.warnings == (
        "episode 1 (seed 1) was played a second time, which counts; the first try: "
        f"{where}() did not return within 2 s",
    )
    assert result.episodes[1].to_dict()["first_error"].startswith(where)


@pytest.mark.slow("workers that hang are replaced")
def test_so_it_is_in_lockstep(tmp_path, ways, hung):
    path = hanging_once(tmp_path, "step", hung)
    once = play(path, ways["lockstep"], episodes=2, horizon=30)
    assert once.success == [True, True]
    assert "the first try: step() did not return within 2 s" in once.warnings[0]


@pytest.mark.parametrize(
    ("episodes", "how", "words"),
    [(9, {"workers": 1}, "all 4 attempts to play an episode failed; .* "), (2, VECTOR, "")],
    ids=["one worker", "lockstep"],
)
def test_nothing_can_be_played_where_making_hangs(tmp_path, episodes, how, words):
    before = set(multiprocessing.active_children())
    words += "making the environment did not return within 1.5 s"
    with pytest.raises(EvaluationError, match=words):
        play(expert(tmp_path, hang_in="make"), (None, how), episodes=episodes, step_timeout_s=0.3)
    assert set(multiprocessing.active_children()) <= before


def test_nothing_played_is_no_success_rate_of_zero(tmp_path, pool):
    with pytest.raises(EvaluationError, match="the simulator is unstable"):
        play(expert(tmp_path, raise_at=[0, 1]), (None, {}), episodes=2, horizon=5)
    with pytest.raises(EvaluationError) as caught:
        play(expert(tmp_path, die_at=list(range(9))), (pool, {}), episodes=9, horizon=5)
    assert "its process died in reset() (exit code 7)" in str(caught.value)
    assert "__main__" not in str(caught.value)


@pytest.mark.parametrize("way", ["here", "pool", "vector"])
def test_another_robot_is_refused_with_both_sizes(tmp_path, ways, way):
    with pytest.raises(EnvError, match="takes actions of 7 numbers, but the checkpoint gives 2"):
        play(expert(tmp_path), ways[way], env_meta(action_dim=7), episodes=2, horizon=5)


def test_a_policy_at_hand_has_no_limit(tmp_path):
    policy, _ = policy_from_checkpoint(ckpt_path=expert(tmp_path))
    with pytest.raises(EnvError, match="leave step_timeout_s out, or give a checkpoint"):
        evaluate(policy, env_meta(), EvalSettings(step_timeout_s=1.0))


def trained(tmp_path, **faults):
    data = write_demos(tmp_path / "demos.hdf5", meta=env_meta(hang_in="step", **faults))
    rollout = {"enabled": True, "n": 8, "rate": 9, "num_workers": 1, "step_timeout_s": 0.5}
    tree = config_dict(data, experiment={"rollout": rollout}, train={"num_epochs": 1})
    return train(tree, output_dir=tmp_path, quiet=True)


def test_a_training_ends_although_its_evaluations_hang(tmp_path):
    result = trained(tmp_path, hang_at=list(range(100000, 100008)))
    assert (result.status, result.exit_code) == ("finished", 1)
    (failure,) = result.results["evaluation_failures"]
    assert "step() did not return within 0.5 s" in failure


def test_an_environment_that_always_hangs_is_found_before_the_first_update(tmp_path):
    words = "step.. did not return within 0.5 s; to train without rollouts"
    with pytest.raises(EnvError, match=words):
        trained(tmp_path)
