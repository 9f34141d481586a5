"""Learned models of an environment, and planners that choose actions by them."""
