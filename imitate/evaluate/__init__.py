"""Evaluation of policies: rollouts in simulators, videos, fitted Q evaluation from recorded data."""
