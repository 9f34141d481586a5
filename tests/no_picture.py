"""Trainings of a process that imports this draw no learning curves. For servers that fork the processes of tests."""

from imitate.train import trainer

trainer.draw_curves = lambda folder: None
