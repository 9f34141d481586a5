"""The section ``cluster``: where the workers of a run are."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat, PositiveFloat, field_validator

from imitate.config.section import Section
from imitate.errors import UserError
from imitate.system.processes import check_place


class ClusterConfig(Section):
    """Where workers run: on this machine, or on the nodes of a Ray cluster."""

    on: str = Field(
        "local",
        description="local: processes of this machine; ray: the Ray cluster of RAY_ADDRESS or the one that runs "
        "here, else a private one of this machine; ray:HOST:PORT. Set by --on.",
    )
    cpus_per_worker: NonNegativeFloat = Field(
        1.0, description="On Ray: processors that a worker has to itself."
    )
    gpus_per_worker: NonNegativeFloat = Field(
        0.0, description="On Ray: GPUs, or a part of one, that a worker has to itself."
    )
    start_timeout_s: PositiveFloat = Field(
        300.0, description="On Ray: time after which a run ends for which no worker got a place."
    )
    spread: bool = Field(
        True, description="On Ray: workers are spread over the nodes; false: packed on few of them."
    )

    @field_validator("on")
    @classmethod
    def _is_a_place(cls, on: str) -> str:
        try:
            check_place(on)
        except UserError as error:
            raise ValueError(str(error).replace("--on", "on", 1)) from None
        return on
