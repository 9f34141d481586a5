"""Policies that act: checkpoints on disk, and RolloutPolicy from raw observations to raw actions."""
