"""The commands that need a robot, a policy server or a bundle; ``run.py`` is the shortest to begin with."""
