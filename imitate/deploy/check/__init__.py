"""Recorded demonstrations through the deployed path, before a robot moves."""
