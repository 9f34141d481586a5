"""Runner of contract checks, which collects their findings."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from imitate.errors import UserError
from imitate.system.user_code import error_words

Verdict = Literal["ok", "warning", "error", "untried", "absent"]
"""untried: depends on a contract that does not hold. absent: not offered, and not needed to learn and to act."""


@dataclass(frozen=True)
class CheckFinding:
    """Finding of one check: the verdict, and advice."""

    name: str
    verdict: Verdict
    words: str


class ContractError(Exception):
    """A contract does not hold; the message describes how."""


class Trials:
    """Checks of contracts in order; a contract that depends on a broken one is not checked.

    Args:
        on_finding: called with each finding as soon as it is made.
        only: names of the contracts to check; None: all.

    Attributes:
        findings: one for each contract that was checked.
    """

    def __init__(
        self,
        on_finding: Callable[[CheckFinding], None] | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        self.findings: list[CheckFinding] = []
        self._only = only
        self._on_finding = on_finding

    def failed(self, name: str) -> bool:
        """Return true if a contract does not hold or could not be checked."""
        verdicts = [finding.verdict for finding in self.findings if finding.name == name]
        return any(verdict in ("error", "untried") for verdict in verdicts)

    def add(self, name: str, trial: Callable[[], str], *, after: tuple[str, ...] = ()) -> None:
        """Check a contract.

        Args:
            name: name of the contract.
            trial: returns a message if it holds, and raises if it does not.
            after: names of the contracts that it depends on.
        """
        if self._only is not None and name not in self._only:
            return
        finding = self._tried(name, trial, after)
        self.findings.append(finding)
        if self._on_finding is not None:
            self._on_finding(finding)

    def _tried(self, name: str, trial: Callable[[], str], after: tuple[str, ...]) -> CheckFinding:
        for other in after:
            if self.failed(other):
                return CheckFinding(name, "untried", f"because of '{other}'")
        try:
            return CheckFinding(name, "ok", trial())
        except (ContractError, UserError) as error:
            return CheckFinding(name, "error", str(error))
        except Exception as error:  # a user's algorithm or environment may raise any error
            words = f"raised {error_words(error)}"
            return CheckFinding(name, "error", words.splitlines()[0])
