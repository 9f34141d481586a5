"""Several files, several tasks: from training to a policy that acts, in every environment of the data."""

import io
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from imitate import policy_from_checkpoint
from imitate.cli.main import app
from imitate.errors import UserError
from imitate.evaluation.evaluate import evaluate
from imitate.policy.checkpoint import load_checkpoint
from imitate.run_folder import RunFolder
from imitate.train.metrics import MetricsFile
from imitate.train.trainer import train

from .conftest import config_dict, env_meta, write_demos

pytestmark = pytest.mark.usefixtures("importable_env")

TO, MIRROR = "go to the goal", "go to the mirror image of the goal"


@pytest.fixture
def files(tmp_path):
    """Two files of one task, and one whose actions contradict them."""
    return [
        write_demos(tmp_path / "a.hdf5", num=60, seed=1, language=TO),
        write_demos(tmp_path / "b.hdf5", num=30, length=10, seed=2, language=TO),
        write_demos(
            tmp_path / "c.hdf5",
            num=90,
            seed=3,
            sign=-1.0,
            meta=env_meta(mirrored=True),
            language=MIRROR,
        ),
    ]


def start(data, tmp_path, obs=("goal", "pos"), epochs=1, **sections):
    tree = config_dict(
        train={"num_epochs": epochs, **sections.pop("train", {})},
        observation={"modalities": {"obs": {"low_dim": list(obs)}}},
        **sections,
    )
    tree["train"]["data"] = data
    return train(tree, output_dir=tmp_path / "runs", stream=io.StringIO())


def test_three_files_train_save_load_and_act(files, tmp_path):
    """What robomimic cannot: its checkpoints of several files do not load, and normalizing them fails."""
    data = [
        {"path": str(files[0]), "weight": 2.0, "demo_limit": 5},
        {"path": str(files[1]), "filter_key": "train"},
        {"path": str(files[2]), "weight": 0.0, "eval": False, "key": "mirror"},
    ]
    train_section = {"hdf5_normalize_obs": True, "hdf5_validation_filter_key": "valid"}
    result = start(data, tmp_path, train=train_section)
    assert result.status == "finished"
    policy, ckpt = policy_from_checkpoint(ckpt_path=result.checkpoint, device="cpu")
    policy.start_episode()
    action = policy({"goal": np.array([0.3, -0.2]), "pos": np.zeros(2)})
    assert action.shape == (2,) and np.isfinite(action).all()
    first, second, third = ckpt["provenance"]["datasets"]
    assert [d["training_demos"] for d in (first, second, third)] == [5, 28, 0]
    assert [d["num_demos"] for d in (first, second, third)] == [60, 30, 90]
    assert [d["weight"] for d in (first, second, third)] == [2.0, 1.0, 0.0]
    assert second["filter_key"] == "train"
    assert len({d["sha256"] for d in (first, second, third)}) == 3
    assert len(ckpt["environments"]) == 1
    # The statistics in the checkpoint are those of 5 x 15 + 28 x 10 steps, pooled.
    goals = np.concatenate([_values(files[0], 5), _values(files[1], 28)])
    saved = ckpt["preprocess"]["obs"]["goal"]
    np.testing.assert_allclose(saved["offset"].numpy(), goals.mean(0), rtol=1e-5)
    np.testing.assert_allclose(saved["scale"].numpy(), goals.std(0), rtol=1e-5)


def _values(path, count):
    import h5py

    with h5py.File(path) as file:
        return np.concatenate([file[f"data/demo_{i}/obs/goal"][()] for i in range(count)])


@pytest.fixture
def told_run(files, tmp_path):
    """A policy that reads its instruction, evaluated where it was trained."""
    return start(
        [{"path": str(path)} for path in files],
        tmp_path,
        obs=("goal", "pos", "lang_emb"),
        train={"batch_size": 128, "normalize_weights_by_ds_size": False},
        experiment={
            "epoch_every_n_steps": 600,
            "rollout": {"enabled": True, "n": 10, "num_workers": 0},
        },
        algo={
            "actor_layer_dims": [64, 64],
            "optim_params": {"policy": {"learning_rate": {"initial": 0.004}}},
        },
    )


def test_a_policy_does_what_it_is_told_in_each_environment(told_run, tmp_path):
    ckpt = load_checkpoint(told_run.checkpoint)
    assert ckpt["language"]["instructions"] == [TO, MIRROR]
    metas = ckpt["environments"]
    assert [(m["lang"], m["env_kwargs"]) for m in metas] == [
        (TO, {}),
        (MIRROR, {"mirrored": True}),
    ]
    name = "point_mass:PointMass-v0"
    assert [m["key"] for m in metas] == [f"{name}: {TO}", f"{name}: {MIRROR}"]

    (record,) = (
        r for r in MetricsFile(RunFolder(told_run.run_dir).metrics).read() if r["kind"] == "rollout"
    )
    rates = [record[f"Rollout/Success_Rate/{meta['key']}"] for meta in metas]
    assert min(rates) >= 0.8, rates
    assert record["Rollout/Success_Rate"] == pytest.approx(np.mean(rates))

    # The same policy, told the other thing, fails in both.
    for meta, wrong in zip(metas, (MIRROR, TO), strict=True):
        result = evaluate(told_run.checkpoint, {**meta, "lang": wrong}, episodes=10, seed=50)
        assert result.success_rate <= 0.2
    # In lockstep it is told too.
    result = evaluate(told_run.checkpoint, metas[1], episodes=6, workers=3, seed=5, mode="vector")
    assert result.success_rate >= 0.8

    policy, _ = policy_from_checkpoint(ckpt_path=told_run.checkpoint, device="cpu")
    assert policy.obs_keys == ("goal", "pos")
    with pytest.raises(UserError, match="'fly' is not known; known: 'go to the goal'; 'go to the"):
        policy.start_episode("fly")
    obs = {"goal": np.array([0.4, 0.4]), "pos": np.zeros(2)}
    policy.start_episode()
    with pytest.raises(UserError, match=r"start_episode\(lang=...\): 'go to the goal'"):
        policy(obs)
    policy.start_episode(TO)
    assert (policy(obs) > 0.5).all()
    policy.start_episode(MIRROR)
    assert (policy(obs) < -0.5).all()

    done = CliRunner().invoke(
        app, ["eval", "-a", str(told_run.checkpoint), "-n", "4", "-w", "1", "--quiet"]
    )
    assert done.exit_code == 0, done.output
    assert f"{name}: {TO}" in done.stdout and f"{name}: {MIRROR}" in done.stdout
    assert "mean of 2 environments" in done.stdout
    one = ["eval", "-a", str(told_run.checkpoint), "-n", "2", "-w", "1", "--quiet", "--env"]
    done = CliRunner().invoke(app, [*one, f"{name}: {MIRROR}"])
    assert f": {MIRROR}" in done.stdout and f": {TO} " not in done.stdout
    told = CliRunner().invoke(app, ["info", str(told_run.checkpoint)]).stdout
    assert (
        f"may be told    {TO}\n" in told
        and "60 demos, 900 steps, 58 taken, weight 1, sha256" in told
    )
    report = tmp_path / "r.json"
    one = ["eval", "-a", str(told_run.checkpoint), "-n", "4", "-w", "1", "--lang", MIRROR]
    done = CliRunner().invoke(app, [*one, "--json", str(report), "--quiet"])
    assert done.exit_code == 0, done.output
    (evaluation,) = json.loads(report.read_text())["evaluations"]
    assert evaluation["env"] == f"{name}: {MIRROR}"
    assert evaluation["success_rate"] >= 0.75


def test_instructions_by_a_table_of_vectors(files, tmp_path):
    rng = np.random.default_rng(0)
    words = np.array([TO, MIRROR, "wait"])
    np.savez(tmp_path / "clip.npz", instructions=words, embeddings=rng.normal(size=(3, 8)))
    result = start(
        [{"path": str(files[0])}, {"path": str(files[2]), "lang": "wait"}],
        tmp_path,
        obs=("goal", "pos", "lang_emb"),
        train={"language_embeddings": str(tmp_path / "clip.npz"), "obs_normalization": "min_max"},
    )
    (tmp_path / "clip.npz").unlink()
    policy, ckpt = policy_from_checkpoint(ckpt_path=result.checkpoint, device="cpu")
    assert ckpt["shape_metadata"]["raw_shapes"]["lang_emb"] == [8]
    assert policy.instructions.names == tuple(words)
    assert [meta["lang"] for meta in ckpt["environments"]] == [TO, "wait"]
    obs = {"goal": np.array([[0.4, 0.4]] * 3), "pos": np.zeros((3, 2))}
    policy.start_episode(TO)
    alike = policy(obs, batched_ob=True)
    np.testing.assert_array_equal(alike[0], alike[1])
    policy.start_episode(MIRROR, mask=[False, True, False])
    mixed = policy(obs, batched_ob=True)
    np.testing.assert_allclose(mixed[[0, 2]], alike[[0, 2]], atol=1e-6)
    assert np.abs(mixed[1] - alike[1]).max() > 1e-3


def test_one_instruction_need_not_be_said(files, tmp_path):
    result = start([{"path": str(files[0])}], tmp_path, obs=("goal", "pos", "lang_emb"))
    policy, _ = policy_from_checkpoint(ckpt_path=result.checkpoint, device="cpu")
    obs = {"goal": np.zeros(2), "pos": np.zeros(2)}
    policy.start_episode()
    unsaid = policy(obs)
    policy.start_episode(TO)
    np.testing.assert_array_equal(unsaid, policy(obs))


def test_environments_of_all_files_with_names(files, tmp_path):
    result = start(
        [
            {"path": str(files[0]), "key": "plain"},
            {"path": str(files[1]), "key": "again"},  # the same environment: evaluated once
            {"path": str(files[2]), "key": "mirror"},
        ],
        tmp_path,
        experiment={"rollout": {"enabled": True, "n": 2, "num_workers": 0}},
    )
    names = [entry["env"] for entry in result.results["final"]["environments"]]
    assert names == ["plain", "mirror"]


def test_a_run_of_several_files_resumes(files, tmp_path):
    data = [{"path": str(path)} for path in files]
    obs = ("goal", "pos", "lang_emb")
    whole = start(data, tmp_path, obs=obs, epochs=2)
    half = start(data, tmp_path, obs=obs)
    resumed = train(resume=half.run_dir, overrides=["train.num_epochs=2"], stream=io.StringIO())
    first, second = (load_checkpoint(r.checkpoint)["model"]["nets"] for r in (whole, resumed))
    assert all((first[key] == second[key]).all() for key in first)
