"""Policies: checkpoints on disk, and RolloutPolicy, which maps raw observations to raw actions."""
