"""Runner for checks of contracts (what the package expects of a user's algorithm or environment)."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from imitate.errors import UserError
from imitate.system.user_code import error_words

Verdict = Literal["ok", "warning", "error", "untried", "absent"]
"""Result of a check. "untried": a contract that it depends on does not hold. "absent": the optional feature is missing.
"""


@dataclass(frozen=True)
class CheckFinding:
    """Result of one check.

    Attributes:
        name: name of the contract.
        verdict: whether the contract holds.
        words: what was found, with advice if the contract does not hold.
    """

    name: str
    verdict: Verdict
    words: str


class ContractError(Exception):
    """A contract does not hold; the message says why, and what to change."""


class Trials:
    """Runs checks and collects their findings; a check that depends on a failed one is left out as "untried".

    Args:
        on_finding: called with each finding as soon as a check is done.
        only: names of the contracts to check; None to check every contract.

    Attributes:
        findings: a finding for each check so far.
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
        """Return true if the contract of this name does not hold or is "untried"."""
        verdicts = [finding.verdict for finding in self.findings if finding.name == name]
        return any(verdict in ("error", "untried") for verdict in verdicts)

    def add(self, name: str, trial: Callable[[], str], *, after: tuple[str, ...] = ()) -> None:
        """Check a contract, unless it is not among the names to check, and record the finding.

        Args:
            name: name of the contract.
            trial: returns words for the report if the contract holds, and raises an error if it does not.
            after: names of the contracts that have to hold before this one is checked.
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
        except Exception as error:  # The user's algorithm or environment may raise any error.
            words = f"raised {error_words(error)}"
            return CheckFinding(name, "error", words.splitlines()[0])
