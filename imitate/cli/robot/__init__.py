"""The commands that use a robot, a policy server or a bundle."""
