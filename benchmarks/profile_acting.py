"""Profile of an episode, or of the policy alone, in CPU seconds by function.

python -m benchmarks.profile_acting runs/RUN/checkpoints/last.pth [--policy-alone]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time

from imitate import policy_from_checkpoint
from imitate.envs import make_env


def main() -> None:
    """Act for 100 steps in the checkpoint's environment, and print the functions by their time."""
    parser = argparse.ArgumentParser("python -m benchmarks.profile_acting", description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--policy-alone", action="store_true", help="1,000 calls, one observation")
    args = parser.parse_args()
    policy, ckpt = policy_from_checkpoint("cpu", args.checkpoint)
    env = make_env(ckpt["env_metadata"])
    obs, _ = env.reset(seed=0)
    policy.start_episode()
    policy(obs)
    profile = cProfile.Profile(time.process_time)
    profile.enable()
    for _ in range(1000 if args.policy_alone else 100):
        action = policy(obs)
        if not args.policy_alone:
            obs, *_ = env.step(action)
    profile.disable()
    env.close()
    pstats.Stats(profile).sort_stats("cumulative").print_stats(40)


if __name__ == "__main__":
    main()
