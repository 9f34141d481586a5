"""Report of a conversion."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from imitate.system.wording import counted


@dataclass
class Report:
    """Arrays and attributes that were kept, renamed, changed, synthesised and dropped.

    Attributes:
        source: path of the source.
        source_format: format of the source.
        target: path of the target.
        target_format: format of the target.
        demos: number of written demos.
        steps: number of steps in all demos.
        kept: unchanged arrays and attributes.
        renamed: new names by old names.
        changed: change of the values, by name.
        synthesised: origin of values that the source does not have, by name.
        dropped: reason, by name.
        doubts: reason to doubt the values, by name; a training on the dataset reports them too.
        notes: further facts that the user should know.
    """

    source: str = ""
    source_format: str = ""
    target: str = ""
    target_format: str = ""
    demos: int = 0
    steps: int = 0
    kept: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    synthesised: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def keep(self, *names: str) -> None:
        """Add a name that is unchanged; repetitions have no effect."""
        self.kept += [name for name in dict.fromkeys(names) if name not in self.kept]

    def note(self, text: str) -> None:
        """Add a note, unless it is already there."""
        if text not in self.notes:
            self.notes.append(text)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = [
            f"{self.source} ({self.source_format}) -> {self.target} ({self.target_format}): "
            f"{counted(self.demos, 'demo')}, {counted(self.steps, 'step')}"
        ]
        if self.kept:
            lines.append(f"  kept: {', '.join(self.kept)}")
        lines += [f"  renamed: {old} -> {new}" for old, new in self.renamed.items()]
        for label in ("changed", "synthesised", "dropped"):
            lines += [f"  {label}: {name}: {why}" for name, why in getattr(self, label).items()]
        lines += [f"  warning: {name}: {why}" for name, why in self.doubts.items()]
        return lines + [f"  note: {text}" for text in self.notes]
