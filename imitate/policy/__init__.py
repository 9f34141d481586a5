"""Trained policies: checkpoint files, and RolloutPolicy, which maps observations to actions, in the data's units."""
