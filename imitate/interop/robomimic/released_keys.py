"""Keys of robomimic's configuration, which refuses any others; ``released_keys.json`` contains them.

A string contains the names of a section's values. A section with nested sections has an entry for each, and ``""`` for
its values. A string ``"@name"`` of the file stands for that entry of its ``parts``. Recorded from robomimic 0.5's
classes; 0.3 has the same but for :data:`SINCE_0_5`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imitate.system.plain_files import read_json

Keys = str | dict[str, Any]

_FILE = read_json(Path(__file__).with_suffix(".json"))


def _filled(keys: Keys) -> Any:
    """Return the keys with the parts in place of their names."""
    if isinstance(keys, str):
        return _filled(_FILE["parts"][keys[1:]]) if keys.startswith("@") else keys
    return {name: _filled(entry) for name, entry in keys.items()}


SINCE_0_5 = tuple(_FILE["since_0_5"])
"""Keys, or prefixes of keys, that 0.3 does not have."""
SHARED, OBSERVATION, ALGO = (_filled(_FILE[name]) for name in ("shared", "observation", "algo"))
"""Keys of all algorithms, and by algorithm those of ``observation`` and ``algo``."""
