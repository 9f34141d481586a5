"""Substitutes for the parts of torchvision and accelerate that LeRobot imports, if these are not installed.

Each of their wheels fits one build of torch only. The video reader decodes with PyAV, as torchvision's does.
"""

import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path

import av
import numpy as np
import torch

import datasets  # noqa: F401 - looks for torchvision itself, and has to find it missing


class VideoReader:
    """Reader of a video's frames from a time on."""

    def __init__(self, path, stream):
        self.container = av.open(str(Path(path)))
        self._stream = self.container.streams.video[0]

    def seek(self, seconds, keyframes_only=False):
        del keyframes_only  # PyAV always seeks to a key frame at or before the time
        self.container.seek(int(seconds / self._stream.time_base), stream=self._stream)

    def __iter__(self):
        for frame in self.container.decode(self._stream):
            array = frame.to_ndarray(format="rgb24")
            data = torch.from_numpy(array).permute(2, 0, 1)
            yield {"data": data, "pts": float(frame.pts * self._stream.time_base)}


class ToTensor:
    """Conversion of an image to float (C, H, W) in [0, 1]."""

    def __call__(self, image):
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def _module(name, **content):
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(content)
    sys.modules[name] = module
    return module


def install():
    """Make the substitutes importable."""
    if importlib.util.find_spec("accelerate") is None:
        _module("accelerate", Accelerator=object)
    if importlib.util.find_spec("torchvision") is None:
        v2 = _module("torchvision.transforms.v2", Transform=object)
        transforms = _module("torchvision.transforms", ToTensor=ToTensor, v2=v2)
        io = _module("torchvision.io", VideoReader=VideoReader)
        _module("torchvision", transforms=transforms, io=io, set_video_backend=lambda name: None)
