"""Import of LeRobot's policies from their folders, without LeRobot, and export of our policies as LeRobot's.

``importing.py`` converts a policy's folder (configuration, weights, statistics) to an algorithm of ours, and
``exporting.py`` writes such a folder. ``features.py`` maps observations and actions. ``act.py`` and ``diffusion.py``
map the configuration and the names of tensors of each kind of policy.
"""
