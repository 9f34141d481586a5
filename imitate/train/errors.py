"""Failures of a run that the user's input did not cause; the command line prints them and exits with 1."""

from __future__ import annotations


class TrainingError(Exception):
    """Training had to stop; the message says why, what is intact and how to go on."""


class EvaluationError(Exception):
    """An evaluation gave no result."""
