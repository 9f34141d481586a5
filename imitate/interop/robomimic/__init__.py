"""Safe import of robomimic's checkpoints, and export of our checkpoints as robomimic's.

``reading.py`` reads a file without running code in it, ``importing.py`` converts its content to ours and
``exporting.py`` writes ours for a release of robomimic. ``networks.py`` maps the names of tensors,
``statistics.py`` the normalization, and ``released_keys`` the keys that each release knows.
"""
