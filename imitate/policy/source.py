"""Sources of the policy that plays episodes: a file on this machine, or its bytes for another machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from imitate.crew.shared import Shared
from imitate.errors import UserError
from imitate.policy.checkpoint import checkpoint_from_bytes, checkpoint_to_bytes, load_checkpoint
from imitate.policy.loading import Precision, policy_of
from imitate.policy.renaming import Rename
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.recognition import lerobot_policy


class PolicySource(Protocol):
    """Source of a policy; picklable."""

    @property
    def key(self) -> str:
        """Key of its content: a worker keeps a loaded policy while the key is the same."""

    def load(self, device: str) -> RolloutPolicy:
        """Make the policy.

        Raises:
            CheckpointError: the checkpoint cannot be read.
        """

    def for_workers(self) -> PolicySource:
        """Return the source in a form that workers on other machines can load."""


@dataclass(frozen=True)
class CheckpointFile:
    """Checkpoint in a file on this machine.

    Attributes:
        path: path of the file.
        rename: new names of observations, see :mod:`imitate.policy.renaming`.
        precision: precision of large linear layers, see :func:`imitate.policy.loading.policy_from_checkpoint`.
    """

    path: str
    rename: Rename = field(default_factory=dict)
    precision: Precision = "fp32"

    @property
    def key(self) -> str:
        """Key made of path, modification time, renamed observations and precision."""
        path = Path(self.path)
        changed = path.stat().st_mtime_ns if path.is_file() else 0
        return f"{path} {changed}{_named(self.rename)} {self.precision}"

    def load(self, device: str) -> RolloutPolicy:
        """Load the policy from the file."""
        return self.policy_of(load_checkpoint(self.path), device)

    def policy_of(self, ckpt: Mapping[str, Any], device: str) -> RolloutPolicy:
        """Make the policy from the content of the file."""
        return policy_of(ckpt, device, self.path, rename=self.rename, precision=self.precision)

    def for_workers(self) -> PolicySource:
        """Return a source with the bytes of the file, which is read once; a sharded file becomes a single one."""
        path = Path(self.path)
        try:
            is_single = lerobot_policy(path) is None
            data = path.read_bytes() if is_single else checkpoint_to_bytes(load_checkpoint(path))
        except (OSError, UserError):  # the worker that opens it reports the fault
            return self
        digest = hashlib.sha256(data).hexdigest()
        return SentCheckpoint(self.path, digest, Shared(data), self.rename, self.precision)


@dataclass(frozen=True)
class SentCheckpoint:
    """Checkpoint whose bytes are shared with the workers.

    Attributes:
        name: name of its file, for messages.
        sha256: checksum of its bytes.
        data: its bytes.
        rename: new names of observations, see :mod:`imitate.policy.renaming`.
        precision: precision of large linear layers, see :func:`imitate.policy.loading.policy_from_checkpoint`.
    """

    name: str
    sha256: str
    data: Shared[bytes]
    rename: Rename = field(default_factory=dict)
    precision: Precision = "fp32"

    @property
    def key(self) -> str:
        """Key made of the checksum, renamed observations and precision."""
        return f"{self.sha256}{_named(self.rename)} {self.precision}"

    def load(self, device: str) -> RolloutPolicy:
        """Load the policy from the bytes; nothing in them is executed."""
        ckpt = checkpoint_from_bytes(self.data.get(), self.name)
        return policy_of(ckpt, device, self.name, rename=self.rename, precision=self.precision)

    def for_workers(self) -> PolicySource:
        """Return this source."""
        return self


def _named(rename: Rename) -> str:
    return "".join(f" {given}={own}" for given, own in sorted(rename.items()))
