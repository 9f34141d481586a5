"""Policies that act: checkpoints on disk, and RolloutPolicy, which takes raw observations and gives raw actions."""
