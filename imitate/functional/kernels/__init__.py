"""Faster ways for single operations on the CPU."""
