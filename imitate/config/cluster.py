"""The section ``cluster``: the machines on which the workers of a run are placed."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat, PositiveFloat, field_validator

from imitate.config.section import Section
from imitate.errors import UserError
from imitate.system.processes import check_place


class ClusterConfig(Section):
    """Placement of workers: on this machine, or on the nodes of a Ray cluster."""

    on: str = Field(
        "local",
        description=(
            "local: processes on this machine; ray: the Ray cluster at RAY_ADDRESS or the one "
            "running here, else a private one on this machine; ray:HOST:PORT: the cluster at this "
            "address. The option --on sets this key."
        ),
    )
    cpus_per_worker: NonNegativeFloat = Field(
        1.0, description="On Ray: CPU cores reserved for each worker."
    )
    gpus_per_worker: NonNegativeFloat = Field(
        0.0, description="On Ray: GPUs reserved for each worker; may be a fraction."
    )
    start_timeout_s: PositiveFloat = Field(
        300.0,
        description="On Ray: seconds to wait for a place for the workers before the run ends.",
    )
    spread: bool = Field(
        True, description="On Ray: spread workers over the nodes; false: pack them on few nodes."
    )

    @field_validator("on")
    @classmethod
    def _is_a_place(cls, on: str) -> str:
        try:
            check_place(on)
        except UserError as error:
            raise ValueError(str(error).replace("--on", "on", 1)) from None
        return on
