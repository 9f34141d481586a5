"""Bundles: policies that run without torch, in one file with the exported networks and all settings for acting.

``archive.py`` reads and writes the file, ``spec.py`` has its description, ``network.py`` the networks, ``policy.py``
the policy that acts with numpy and onnxruntime alone; ``exporting.py`` writes bundles and needs torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {"BundlePolicy": "policy", "export_policy": "exporting", "is_bundle": "archive"}

if TYPE_CHECKING:
    from imitate.deploy.bundle.archive import is_bundle
    from imitate.deploy.bundle.exporting import export_policy
    from imitate.deploy.bundle.policy import BundlePolicy

__all__ = ["BundlePolicy", "export_policy", "is_bundle"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'imitate.deploy.bundle' has no attribute '{name}'")
    return getattr(import_module(f"imitate.deploy.bundle.{_HOMES[name]}"), name)
