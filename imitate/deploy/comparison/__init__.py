"""Blind, paired comparison of two policies on a robot, with a test that is valid after each pair."""
