"""D4RL's normalized score: 0 is the return of random actions, 100 that of an expert.

    score = 100 (return - random) / (expert - random)

The reference returns are D4RL's (Fu et al., D4RL: Datasets for Deep Data-Driven Reinforcement Learning, 2020,
arXiv:2004.07219; ``d4rl/infos.py``), by the names of the same tasks in gymnasium and gymnasium-robotics. D4RL measured
them with version 2 of the locomotion tasks; later versions differ slightly in their rewards and contact forces.
"""

from __future__ import annotations

REFERENCE_RETURNS = {
    "HalfCheetah": (-280.178953, 12135.0),
    "Hopper": (-20.272305, 3234.3),
    "Walker2d": (1.629008, 4592.3),
    "Ant": (-325.6, 3879.7),
    "AdroitHandPen": (96.262799, 3076.8331017826877),
    "AdroitHandHammer": (-274.856578, 12794.134825156867),
    "AdroitHandDoor": (-56.512833, 2880.5693087298737),
    "AdroitHandRelocate": (-6.425911, 4233.877797728884),
}
"""Returns of random actions and of an expert, by the name without its version."""


def d4rl_score(env_name: str, episode_return: float) -> float | None:
    """Return the normalized score of a return, or None if D4RL has no reference for the environment.

    Args:
        env_name: registered id such as ``HalfCheetah-v5``, with or without its module.
        episode_return: sum of rewards of an episode, or a mean of such sums.
    """
    task, _, version = env_name.rpartition(":")[2].rpartition("-v")
    if not version.isdigit() or task not in REFERENCE_RETURNS:
        return None
    random, expert = REFERENCE_RETURNS[task]
    return 100.0 * (episode_return - random) / (expert - random)
