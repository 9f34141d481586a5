"""Earlier name of :mod:`imitate.config.data_needs`, which sections of other packages import."""

from __future__ import annotations

from imitate.config.data_needs import Returns, Subgoals, Transitions

__all__ = ["Returns", "Subgoals", "Transitions"]
