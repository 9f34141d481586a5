"""Simulators and recorded demonstrations: collect, play back, render, replay, convert actions."""
