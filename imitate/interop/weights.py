"""Conversion of tensors between another toolkit's ``state_dict`` and ours."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from imitate.errors import CheckpointError
from imitate.interop.names import Name


def to_ours(
    theirs: Mapping[str, Tensor],
    names: Sequence[Name],
    shapes: Mapping[str, torch.Size],
    constants: Collection[str] = (),
) -> dict[str, Tensor]:
    """Convert their tensors to ours.

    Args:
        theirs: their tensors.
        names: pairs of names; all tensors that ours are made of.
        shapes: of our tensors.
        constants: names of theirs that nothing is made of.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or is one that we have nothing for.
    """
    known = {one for name in names for one in (name.theirs, *name.copies)} | set(constants)
    unknown = [name for name in theirs if name not in known]
    if unknown:
        raise CheckpointError(
            f"the file has {len(unknown)} tensors that there is no network for, such as '{unknown[0]}'"
        )
    ours: dict[str, Tensor] = {}
    rows: dict[str, list[Tensor]] = {}
    for name in names:
        if name.theirs not in theirs:
            raise CheckpointError(
                f"the file lacks '{name.theirs}', which its configuration requires"
            )
        shape = shapes[name.ours]
        value = _as_ours(theirs[name.theirs], name)
        wanted = shape if name.member is None else shape[1:]
        if value.shape != wanted:
            raise CheckpointError(
                f"'{name.theirs}' has shape {tuple(theirs[name.theirs].shape)}, which does not fit what its "
                f"configuration and observations ask for ({tuple(wanted)} here)"
            )
        if name.member is None:
            ours[name.ours] = value.clone(memory_format=torch.contiguous_format)
        else:
            rows.setdefault(name.ours, []).append(value)
    return ours | {name: torch.stack(values) for name, values in rows.items()}


def to_theirs(ours: Mapping[str, Tensor], names: Sequence[Name]) -> dict[str, Tensor]:
    """Convert our tensors to theirs, with all copies."""
    theirs: dict[str, Tensor] = {}
    for name in names:
        value = ours[name.ours].detach().cpu()
        value = value if name.member is None else value[name.member]
        value = value.t() if name.transposed else value
        value = value[None] if name.lead else value
        value = value.reshape(*value.shape, *[1] * name.trail) if name.trail else value
        value = value.clone(memory_format=torch.contiguous_format)
        for one in (name.theirs, *name.copies):
            theirs[one] = value
    return theirs


def _as_ours(value: Tensor, name: Name) -> Tensor:
    value = value.t() if name.transposed else value
    value = value.squeeze(0) if name.lead else value
    return value.flatten(value.dim() - name.trail - 1) if name.trail else value
