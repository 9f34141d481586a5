import runpy
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from imitate import SequenceDataset

EXAMPLE = Path(__file__).parents[2] / "examples" / "write_own_dataset.py"


def test_the_example_writes_a_file_that_loads(tmp_path, capsys):
    path = tmp_path / "own.hdf5"
    main = runpy.run_path(str(EXAMPLE))["main"]
    assert main(str(path), num_demos=10) == 10
    assert "10 demos" in capsys.readouterr().out
    dataset = SequenceDataset(
        path, ["position", "goal", "camera_image"], filter_by_attribute="train", load_next_obs=True
    )
    assert len(dataset.demos) == 9
    batch = next(iter(DataLoader(dataset, batch_size=len(dataset))))
    assert batch["obs"]["camera_image"].shape[1:] == (1, 32, 32, 3)
    # The point moves by a tenth of the action.
    moved = batch["next_obs"]["position"] - batch["obs"]["position"]
    inner = batch["dones"][:, 0] == 0
    assert torch.allclose(moved[inner], 0.1 * batch["actions"][inner], atol=1e-6)
    assert batch["actions"].abs().max() <= 1
    assert batch["dones"].sum() == 9
