"""Learned models of an environment, and planners that choose actions with them."""
