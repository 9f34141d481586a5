"""Loading of a policy from a checkpoint file, or on another machine from the bytes of the file."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import torch

from imitate.algo.base.algo import Algo
from imitate.algo.base.factory import variant_of
from imitate.crew.shared import Shared
from imitate.errors import CheckpointError, UserError
from imitate.functional.kernels import has_int8, pack_linears
from imitate.models.precision import has_fast_bf16
from imitate.policy.checkpoint import (
    algo_from_checkpoint,
    checkpoint_from_bytes,
    checkpoint_to_bytes,
    control_freq_of,
    converted,
    load_checkpoint,
)
from imitate.policy.checks import refuse_not_finite
from imitate.policy.renaming import Rename, joined
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.policy.uncertainty import Calibration
from imitate.system.instructions import Instructions
from imitate.system.recognition import lerobot_policy
from imitate.system.torch_archive import first_line

_logger = logging.getLogger(__name__)

Precision = Literal["fp32", "bf16", "int8"]


def policy_from_checkpoint(
    device: torch.device | str | None = None,
    ckpt_path: str | Path | None = None,
    ckpt_dict: Mapping[str, Any] | None = None,
    verbose: bool = False,
    precision: Precision = "fp32",
    rename: Rename | None = None,
) -> tuple[RolloutPolicy, dict[str, Any]]:
    """Load a policy from a checkpoint. No simulator, dataset or internet connection is needed.

    Args:
        device: device on which the policy runs; None for the first CUDA device, or the CPU if there is none.
        ckpt_path: checkpoint file, ours or robomimic's, or a run folder; give either this or ``ckpt_dict``.
        ckpt_dict: an already loaded checkpoint.
        verbose: true to log a description of the loaded policy.
        precision: precision of the large linear layers on a CPU. bf16 makes large networks up to twice as fast and
            changes the third digit of actions; int8 makes them up to three times as fast and changes the second digit.
        rename: maps observation names of the environment to the policy's, in addition to the checkpoint's own mapping.

    Returns:
        the policy, ready for ``start_episode()``, and the checkpoint's dict.

    Raises:
        CheckpointError: see :func:`imitate.policy.checkpoint.load_checkpoint`.
        UserError: bf16 or int8 is requested on a device that does not support it, or the policy has no observation to
            rename.
    """
    if (ckpt_path is None) == (ckpt_dict is None):
        raise CheckpointError("give either ckpt_path or ckpt_dict, not both or neither")
    ckpt = converted(ckpt_dict) if ckpt_dict is not None else load_checkpoint(str(ckpt_path))
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    source = "ckpt_dict" if ckpt_path is None else ckpt_path
    policy = policy_of(ckpt, device, source, rename=rename, precision=precision)
    if verbose:
        _logger.info(
            "loaded %s, trained for %s epochs, on %s",
            variant_of(policy.algo),
            ckpt.get("train_state", {}).get("epoch", "?"),
            policy.algo.device,
        )
    return policy, ckpt


def policy_of(
    ckpt: Mapping[str, Any],
    device: torch.device | str,
    source: str | Path,
    *,
    rename: Rename | None = None,
    precision: Precision = "fp32",
) -> RolloutPolicy:
    """Make the policy of a checkpoint that is already read; error messages begin with its file name ``source``.

    Raises:
        UserError: as in :func:`policy_from_checkpoint`.
    """
    algo = algo_from_checkpoint(ckpt, device, source=source)
    instructions = _instructions(ckpt.get("language"), source)
    low, high = _limits(ckpt["shape_metadata"], algo, source)
    algo.set_eval()
    _pack(algo, precision)
    rate, names = control_freq_of(ckpt), ckpt["shape_metadata"].get("names")
    given = joined(ckpt.get("rename"), rename)
    known = Calibration.from_dict(ckpt.get("calibration"), source)
    try:
        ranges = (ckpt.get("provenance") or {}).get("observations")
        return RolloutPolicy(algo, low, high, instructions, rate, names, given, ranges, known)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def _pack(algo: Algo, precision: Precision) -> None:
    """Convert the weights of the algorithm's large linear layers to a precision."""
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
    if precision not in dtypes:
        raise UserError(
            f"precision {precision!r}: expected one of {', '.join(get_args(Precision))}"
        )
    on_cpu = algo.device.type == "cpu"
    if precision == "bf16" and not (on_cpu and has_fast_bf16(algo.device)):
        raise UserError(
            "precision 'bf16' needs a CPU that supports it (avx512_bf16, amx); device "
            f"'{algo.device}' does not: choose 'fp32'"
        )
    if precision == "int8" and not (on_cpu and has_int8()):
        raise UserError(
            f"precision 'int8' needs an x86 CPU; device '{algo.device}' does not support it: choose 'fp32'"
        )
    pack_linears(algo.active_nets, dtypes[precision])


def _instructions(saved: Mapping[str, Any] | None, source: str | Path) -> Instructions | None:
    """Return the table of language instructions in a checkpoint; None without language."""
    if not saved:
        return None
    try:
        table = Instructions.from_dict(saved)
        if table.vectors.shape != (len(table.names), table.size) or not table.names:
            raise ValueError(
                f"{len(table.names)} names, but vectors of shape {table.vectors.shape}"
            )
        refuse_not_finite("embeddings", table.vectors)
    except Exception as error:
        raise CheckpointError(
            f"{source}: 'language' of the checkpoint is not a table of instructions ({first_line(error)})"
        ) from error
    return table


def _limits(
    shapes: Mapping[str, Any], algo: Algo, source: str | Path
) -> tuple[list[float] | None, list[float] | None]:
    """Return the lowest and highest action in a checkpoint, one number per action dimension; None for no limit."""
    low, high = shapes.get("action_low"), shapes.get("action_high")
    wanted = algo.preprocess.actions.sent_dim
    for name, limit in (("action_low", low), ("action_high", high)):
        if limit is not None and len(limit) != wanted:
            raise CheckpointError(
                f"{source}: '{name}' of the checkpoint has {len(limit)} numbers, but an action of the "
                f"policy has {wanted}"
            )
    return low, high


# ---- sources of a policy -------------------------------------------------------------------------


class PolicySource(Protocol):
    """Interface of a picklable object from which a worker loads a policy."""

    @property
    def key(self) -> str:
        """Key of the policy's content: a worker reuses a loaded policy as long as the key is the same."""

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
        """Key of the policy's content: path, modification time, renamed observations and precision."""
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
        """Return a source that contains the bytes of the file, so that workers on other machines need no file."""
        path = Path(self.path)
        try:
            is_single = lerobot_policy(path) is None
            data = path.read_bytes() if is_single else checkpoint_to_bytes(load_checkpoint(path))
        except (OSError, UserError):  # a worker reports the fault when it opens the file
            return self
        digest = hashlib.sha256(data).hexdigest()
        return SentCheckpoint(self.path, digest, Shared(data), self.rename, self.precision)


@dataclass(frozen=True)
class SentCheckpoint:
    """Checkpoint whose bytes are shared with the workers.

    Attributes:
        name: name of the checkpoint file, for messages.
        sha256: checksum of the bytes.
        data: bytes of the checkpoint file.
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
        """Key of the policy's content: checksum, renamed observations and precision."""
        return f"{self.sha256}{_named(self.rename)} {self.precision}"

    def load(self, device: str) -> RolloutPolicy:
        """Load the policy from the bytes; nothing in them is executed."""
        ckpt = checkpoint_from_bytes(self.data.get(), self.name)
        return policy_of(ckpt, device, self.name, rename=self.rename, precision=self.precision)

    def for_workers(self) -> PolicySource:
        """Return this source, which workers on other machines can already load."""
        return self


def _named(rename: Rename) -> str:
    return "".join(f" {given}={own}" for given, own in sorted(rename.items()))
