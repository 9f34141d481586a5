"""Import of LeRobot's policies from their folders, and export of our policies to such folders; LeRobot is not needed.

``importing.py`` converts a policy's folder (configuration, weights, statistics) to an algorithm of ours, and
``exporting.py`` writes such a folder. ``features.py`` maps observations and actions. ``act.py`` and ``diffusion.py``
map the configuration and the names of the tensors of one type of policy each.
"""
