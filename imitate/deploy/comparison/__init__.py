"""Blind, paired comparison of two policies on a robot, with a test that may be looked at after each pair."""
