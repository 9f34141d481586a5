"""The own step of docs/policies.md, as an installed package: trained with, saved, loaded."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from imitate import policy_from_checkpoint
from imitate.errors import UserError
from imitate.train.trainer import train
from tests.demo_files import episode, write_demos
from tests.tiny import tiny_config

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()


@pytest.fixture
def installed(tmp_path):
    """The package, on the module path while the context lasts."""
    (group, name, module, kind) = re.search(
        r'entry-points\."([\w.]+)"\]\n(\w+) = "([\w.]+):(\w+)"', PAGE
    ).groups()
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    site = tmp_path / "site"
    package = site / module.partition(".")[0]
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (site / f"{module.replace('.', '/')}.py").write_text(code)
    info = site / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{kind}\n")
    _forget()  # tests of other pages have packages of the same name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(site), *sys.path])
        yield
    _forget()


def _forget():
    for loaded in [loaded for loaded in sys.modules if loaded.startswith("my_package")]:
        del sys.modules[loaded]


def config(path):
    (section,) = re.findall(r'```json\n(\{\s*"train".*?)```', PAGE, re.DOTALL)
    words = {"num_epochs": 1, "obs_normalization": "min_max", **json.loads(section)["train"]}
    return tiny_config(obs={"force": 1}, data=path, train=words)


def test_a_step_of_another_package(installed, tmp_path, monkeypatch):
    demos = [episode(20, {"force": np.linspace(-30, 60, 20)[:, None]}, end="timeout")]
    path = write_demos(tmp_path / "force.hdf5", demos, {"env_name": "arm", "type": 2})
    result = train(config(path), output_dir=tmp_path / "runs", quiet=True)
    policy, ckpt = policy_from_checkpoint(ckpt_path=result.checkpoint, device="cpu")
    assert policy({"force": np.array([3.0])}).shape == (2,)
    assert ckpt["preprocess"]["steps"][0]["step"] == "log_force"
    pipeline = policy.algo.preprocess
    # log(1 + 15) and log(1 + 30) are -1 and 1; 0 of the data is between.
    low, high = -np.log(16.0), np.log(31.0)
    prepared = pipeline.prepare_obs({"force": np.array([[-30.0], [60.0], [0.0]])})["force"]
    middle = float(-(low + high) / (high - low))
    torch.testing.assert_close(prepared[:, 0], torch.tensor([-1.0, 1.0, middle]), atol=1e-5, rtol=0)
    back = pipeline.unnormalize_obs("force", prepared)
    torch.testing.assert_close(back[:, 0], torch.tensor([-30.0, 60.0, 0.0]), atol=1e-4, rtol=1e-5)
    monkeypatch.setattr(sys, "path", sys.path[1:])
    with pytest.raises(UserError, match=r"unknown 'log_force'.*group 'imitate.preprocess'"):
        policy_from_checkpoint(ckpt_path=result.checkpoint, device="cpu")
