"""Comparison of the first action sent by lerobot-rollout with imitate's; see lerobot_policies.sh.

python lerobot_sent.py first.json NAME sent.json
"""

import json
import sys
from pathlib import Path

import numpy as np

first, name, sent = sys.argv[1:]
actions = [list(action.values()) for action in json.loads(Path(sent).read_text())]
wanted = json.loads(Path(first).read_text())[name]
assert len(actions) > 10, f"{name}: {len(actions)} actions in 3 s"
np.testing.assert_allclose(actions[0], wanted, atol=1e-4)
assert np.ptp(actions, axis=0).max() > 1e-3, f"{name}: it never moved"
sys.stdout.write(f"lerobot-rollout: {name}: {len(actions)} actions, the first as imitate's\n")
