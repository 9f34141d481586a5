"""File and line of an error in a user's own code, such as a robot, an environment, an expert or a plug-in."""

import sysconfig
from functools import cache
from pathlib import Path
from types import TracebackType

from imitate.system.extras import installed_points

_OWN = str(Path(__file__).resolve().parents[1])
_GROUPS = (
    *("algos", "encoders", "preprocess", "experts", "robots", "teleoperators", "formats"),
    *("auxiliaries", "dynamics", "planners"),
)
"""Groups of entry points by which other packages extend this one."""
_LIBRARIES = tuple(
    str(place)
    for kind in ("stdlib", "platstdlib", "purelib", "platlib")
    for path in (Path(sysconfig.get_path(kind)),)
    for place in (path, path.resolve())
)


def place_in_user_code(error: BaseException) -> str:
    """Return ``FILE, line N`` of the innermost call in code that is neither ours nor a library's, else ''."""
    found, trace = "", error.__traceback__
    while trace is not None:
        found = _place(trace) or found
        trace = trace.tb_next
    if not found and error.__cause__ is not None:
        return place_in_user_code(error.__cause__)
    return found


def error_words(error: BaseException) -> str:
    """Return the type of an error, the first line of its message, and the file and line in a user's code."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = []
    words = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    place = place_in_user_code(error)
    return f"{words}; {place}" if place else words


def _place(trace: TracebackType) -> str:
    file = trace.tb_frame.f_code.co_filename
    if file.startswith("<"):
        return ""
    path = str(Path(file).resolve())
    is_library = path.startswith((_OWN, *_LIBRARIES)) or file.startswith(_LIBRARIES)
    module = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    if is_library and (path.startswith(_OWN) or module not in _plug_ins()):
        return ""
    here = Path.cwd()
    shown = Path(path).relative_to(here) if Path(path).is_relative_to(here) else Path(file)
    return f"{shown}, line {trace.tb_lineno}"


@cache
def _plug_ins() -> frozenset[str]:
    """Return the top modules of installed packages that extend this one by entry points."""
    return frozenset(
        point.value.partition(":")[0].partition(".")[0]
        for group in _GROUPS
        for point in installed_points(f"imitate.{group}")
    ) - {"imitate"}
