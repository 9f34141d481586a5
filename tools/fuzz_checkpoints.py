"""Fuzzing of damaged and invalid checkpoints, which prints every result other than a refusal.

PYTHONPATH=. python tools/fuzz_checkpoints.py --seconds 60 --seed 0
"""

import argparse
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from imitate.policy.checkpoint import save_checkpoint
from tests.policy.fuzz import all_swaps, plain_checkpoint, use


def explore(seconds, seed, folder):
    """Try random swaps and damaged bytes; return the number of tries and of those that were not refused."""
    rng, path = random.Random(seed), folder / "model.pth"
    ckpts = [plain_checkpoint("bc"), plain_checkpoint("flow_policy")]
    save_checkpoint(ckpts[0], path)
    whole = path.read_bytes()
    swaps = [case for ckpt in ckpts for case in all_swaps(ckpt)]
    end, tries, faults = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        if rng.random() < 0.7:
            words, ckpt = rng.choice(swaps)
            save_checkpoint(ckpt, path)
        else:
            words = f"bytes, try {tries}"
            broken = bytearray(whole)
            for _ in range(rng.choice((1, 20))):
                broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
            path.write_bytes(broken)
        tries += 1
        try:
            use(path)
        except Exception:
            faults += 1
            sys.stderr.write(f"{words}\n")
            traceback.print_exc(limit=-4)
    return tries, faults


def main():
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tries, faults = explore(arguments.seconds, arguments.seed, Path(folder))
    sys.stdout.write(f"{tries} checkpoints, {faults} faults\n")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
