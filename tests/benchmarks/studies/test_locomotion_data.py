import io
import pickle
import zipfile

import h5py
import numpy as np
import pytest
import torch

from benchmarks.studies.locomotion_data import AGENTS, load_agent, main, statistics


class Moments:
    """Stands for the other toolkit's class: only its name is in the pickle."""


def write_agent(folder, algorithm, *, bias=0.0, normalized=True):
    """An agent with layers 17 -> 2 -> 6, or 17 -> 6 for ars, in the layout of the published ones."""
    home = folder / algorithm / "Walker2d-v3_1"
    (home / "Walker2d-v3").mkdir(parents=True)
    hidden, out = (
        ("actor.latent_pi.0", "actor.mu")
        if algorithm in ("sac", "tqc")
        else ("mlp_extractor.policy_net.0", "action_net")
    )
    weights = {
        f"{hidden}.weight": torch.ones(2, 17),
        f"{hidden}.bias": torch.tensor([0.0, -1.0]),
        f"{out}.weight": 0.1 * torch.ones(6, 2),
        f"{out}.bias": torch.full((6,), bias),
    }
    if algorithm == "ars":
        weights = {"action_net.weight": 0.01 * torch.ones(6, 17)}
    stored = io.BytesIO()
    torch.save(weights, stored)
    with zipfile.ZipFile(home / "Walker2d-v3.zip", "w") as archive:
        archive.writestr("policy.pth", stored.getvalue())
    if normalized:
        write_statistics(home / "Walker2d-v3" / "vecnormalize.pkl")


def write_statistics(path, size=17, **extra):
    kept, rms = Moments(), Moments()
    rms.mean, rms.var = np.full(size, 1.0), np.full(size, 4.0)
    kept.__dict__.update(obs_rms=rms, epsilon=0.0, clip_obs=10.0, **extra)
    path.write_bytes(pickle.dumps(kept))


def test_actions_of_the_published_layouts(tmp_path):
    write_agent(tmp_path, "sac", normalized=False)
    write_agent(tmp_path, "a2c", bias=0.5)
    write_agent(tmp_path, "ars")
    obs = np.zeros(17)
    # (0 - 1) / 2 = -0.5 each; hidden tanh(-8.5), tanh(-9.5), both -1; 0.1 * -2 + 0.5
    np.testing.assert_allclose(load_agent(tmp_path, "a2c", "Walker2d")(obs), 0.3, atol=1e-6)
    np.testing.assert_allclose(load_agent(tmp_path, "ars", "Walker2d")(obs), -0.085, atol=1e-6)
    # not normalized: hidden relu(1.7), relu(0.7); tanh(0.1 * 2.4)
    wanted = np.tanh(0.24)
    np.testing.assert_allclose(
        load_agent(tmp_path, "sac", "Walker2d")(obs + 0.1), wanted, atol=1e-6
    )


class Harmful:
    def __reduce__(self):
        return (print, ("harm done",))


def test_nothing_of_a_pickle_is_run(tmp_path, capsys):
    path = tmp_path / "vecnormalize.pkl"
    write_statistics(path, size=2, extra=Harmful())
    mean, std, clip = statistics(path)
    assert (mean.tolist(), std.tolist(), clip) == ([1.0, 1.0], [2.0, 2.0], 10.0)
    assert "harm done" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["mixed", "medium_expert"])
def test_a_file_with_episodes_of_all(tmp_path, capsys, kind):
    for number, algorithm in enumerate(AGENTS):
        write_agent(tmp_path, algorithm, bias=0.1 * number)
    statistics_of_time = tmp_path / "trpo" / "Walker2d-v3_1" / "Walker2d-v3" / "vecnormalize.pkl"
    write_statistics(statistics_of_time, size=18)
    out = tmp_path / "many.hdf5"
    options = ["--agents", str(tmp_path), "--env", "Walker2d", "--kind", kind]
    assert main([*options, "--rows", "700", "--out", str(out)]) == 0
    assert "mean return" in capsys.readouterr().out
    with h5py.File(out) as file:
        rows = len(file["observations"])
        assert rows >= 700
        assert file["actions"].shape == (rows, 6)
        ends = file["terminals"][()] | file["timeouts"][()]
        agents = [name.decode() for name in file["metadata/episode_agent"]]
        assert ends[-1] and ends.sum() == len(agents) == len(
            file["metadata/episode_final_observation"]
        )
        if kind == "mixed":
            assert agents[:6] == [*(name for name in AGENTS if name != "trpo"), "random"]
        else:
            assert agents[0] not in agents[1:5]
