"""Workers that process items, with the same retries, time limits and order of results for all multi-process work.

:class:`Crew` hands out the items and collects the results. A :class:`~imitate.crew.backend.Backend` is the place where
its workers run, by default processes on this machine (:class:`~imitate.crew.local.LocalBackend`).
"""

from imitate.crew.backend import CancelledError, Limits, Lost, Reports
from imitate.crew.crew import Crew, Done
from imitate.crew.places import open_backend
from imitate.crew.shared import Shared

__all__ = ["CancelledError", "Crew", "Done", "Limits", "Lost", "Reports", "Shared", "open_backend"]
