"""Workers of a DataLoader look at the store of their parent; none has a copy."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from imitate.data import DatasetWriter, Episode

SCRIPT = """
import os, sys
from pathlib import Path
from torch.utils.data import DataLoader
import torch
from imitate.data import SequenceDataset

def proportional_set_size(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    # Not of mapped files: their share depends on the other processes of the machine that use the same libraries.
    own = ("Pss_Anon:", "Pss_Shmem:")
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(own))

def main(path, context):
    torch.set_num_threads(1)
    data = SequenceDataset(path, ("camera",), hdf5_cache_mode="all")
    loader = DataLoader(
        data, batch_size=8, num_workers=2, multiprocessing_context=context, persistent_workers=True,
        prefetch_factor=1,
    )
    total = 0
    for batch in loader:  # both workers touch all that they will touch
        total += int(batch["obs"]["camera"].numpy()[:, 0, 50, 50, 1].sum())
    workers = [worker.pid for worker in loader._iterator._workers]
    print(sum(map(proportional_set_size, (os.getpid(), *workers))), total)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""
MB = 10**6


def write(path, steps):
    with DatasetWriter(path, {}) as writer:
        for number in range(4):
            writer.append_episode(
                Episode(
                    obs={"camera": np.full((steps, 100, 100, 3), number + 1, np.uint8)},
                    actions=np.zeros((steps, 2)),
                    rewards=np.zeros(steps),
                    terminals=np.zeros(steps),
                    timeouts=np.zeros(steps),
                )
            )
    return path


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_two_workers_take_no_memory_of_their_own_for_the_data(tmp_path, context):
    script = tmp_path / "loading.py"
    script.write_text(SCRIPT)

    def taken(steps):
        path = write(tmp_path / f"{steps}.hdf5", steps)
        command = [sys.executable, str(script), str(path), context]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path.cwd())
        size, total = map(int, done.stdout.split())
        assert total == steps * (1 + 2 + 3 + 4)
        return size

    raw = 4 * 1000 * 100 * 100 * 3  # 120 MB, against 2 MB that only show what the processes take
    growth = taken(1000) - taken(16)
    # A little less is other memory that the larger run happened not to take.
    assert 0.95 * raw < growth < 1.1 * raw + 25 * MB, (
        f"{growth / MB:.0f} MB for {raw / MB:.0f} MB of images"
    )
