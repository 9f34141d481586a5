"""The section ``meta``: keys that a hyper-parameter sweep fills in."""

from __future__ import annotations

from pydantic import Field

from imitate.config.section import Free, Section


class MetaConfig(Section):
    """Filled in by a hyper-parameter sweep."""

    hp_base_config_file: str | None = Field(
        None, description="The configuration the sweep started from."
    )
    hp_keys: tuple[str, ...] = Field((), description="Names of the swept keys.")
    hp_values: tuple[Free, ...] = Field((), description="Their values in this run. Free-form.")
