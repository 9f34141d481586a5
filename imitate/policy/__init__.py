"""Trained policies: checkpoint files, and RolloutPolicy, which maps raw observations to raw actions."""
