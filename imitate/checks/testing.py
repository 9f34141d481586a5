"""Checks of a user's own environment, policy, trainer and pipeline, to call from tests of their own package.

    from imitate.checks.testing import test_environment

    def test_my_environment():
        test_environment("my_package:MyEnv-v0")

Each check returns its findings, or raises :class:`CheckFailedError`, an AssertionError that names the
broken contracts. The checks are those of ``imitate check-env`` and ``imitate check-algo`` on a small scale: each takes
seconds, in one process.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from imitate.checks.algo import check_algo
from imitate.checks.contracts import CheckFinding
from imitate.checks.env import check_env
from imitate.config import Config
from imitate.config.loading import Source
from imitate.envs import make_env
from imitate.envs.env import Env
from imitate.evaluate.environments import named_env, trust_named
from imitate.system.trust import trust_env
from imitate.train.setup import load_resolved

__all__ = [
    "CheckFailedError",
    "test_environment",
    "test_pipeline",
    "test_policy",
    "test_trainer",
]

POLICY = ("observations", "networks", "steps", "actions", "checkpoint")
TRAINER = (
    *("observations", "networks", "steps", "loss", "gradients", "weights", "targets"),
    *("training", "resume"),
)
"""Contracts that :func:`test_policy` (``POLICY``) and :func:`test_trainer` (``TRAINER``) check, in this order."""


class CheckFailedError(AssertionError):
    """A contract does not hold; the message names each such contract with the reason.

    Attributes:
        findings: the findings of all checks, also of those that succeeded.
    """

    def __init__(self, subject: str, findings: Sequence[CheckFinding]) -> None:
        broken = [f"{f.name}: {f.words}" for f in findings if f.verdict in ("error", "untried")]
        super().__init__(f"{subject}: {'; '.join(broken)}")
        self.findings = tuple(findings)


def test_environment(
    env: str | Mapping[str, Any] | Callable[[], Env], *, steps: int = 1000, warnings: bool = True
) -> tuple[CheckFinding, ...]:
    """Check an environment: limits, observations, seeds, episode ends, success, states.

    Args:
        env: a name as for ``--env``, env_args, or a function that makes an instance of the environment.
        steps: number of random steps within which an episode should end.
        warnings: true to accept warnings, false to raise an error for them too.

    Returns:
        the findings.

    Raises:
        CheckFailedError: a contract does not hold, or there is a warning and ``warnings`` is false.
        UserError: there is no such environment.
    """
    if callable(env):
        return _passed("environment", check_env(env, {}, steps=steps), warnings)
    trust_env(env)
    meta = named_env(env) if isinstance(env, str) else dict(env)
    make = functools.partial(make_env, meta, team=True)
    found = check_env(make, meta, steps=steps)
    return _passed(str(meta.get("env_name")), found, warnings)


def test_policy(
    config: Source, *, dataset: str | Path | None = None, overrides: Sequence[str] = ()
) -> tuple[CheckFinding, ...]:
    """Check that a configuration's policy gives finite, repeatable actions, and the same ones from a checkpoint.

    Args:
        config: a configuration, in any form that ``load_config`` accepts.
        dataset: demonstrations to use instead of those in ``train.data``, or None.
        overrides: values of other keys, such as ``"train.batch_size=8"``.

    Returns:
        the findings.

    Raises:
        CheckFailedError: a contract does not hold.
        UserError: the configuration is not valid.
    """
    return _tried(config, dataset, overrides, POLICY)


def test_trainer(
    config: Source, *, dataset: str | Path | None = None, overrides: Sequence[str] = ()
) -> tuple[CheckFinding, ...]:
    """Check how a configuration learns: losses, gradients, weights, target networks, interrupting and resuming a run.

    The arguments, the result and the errors are described at :func:`test_policy`.
    """
    return _tried(config, dataset, overrides, TRAINER)


def test_pipeline(
    config: Source, *, dataset: str | Path | None = None, overrides: Sequence[str] = ()
) -> tuple[CheckFinding, ...]:
    """Check everything from the environment to the evaluation of a trained policy, as ``imitate check-algo`` does.

    The arguments, the result and the errors are described at :func:`test_policy`.
    """
    return _tried(config, dataset, overrides, None)


def _tried(
    config: Source,
    dataset: str | Path | None,
    overrides: Sequence[str],
    names: Sequence[str] | None,
) -> tuple[CheckFinding, ...]:
    """Check those of the named contracts that apply to the configuration; with None every contract."""
    loaded: Config = load_resolved(config, overrides, dataset, None)
    trust_named(loaded)
    findings = check_algo(loaded, only=names)
    return _passed(loaded.algo_name, findings, True)


def _passed(
    subject: str, findings: Sequence[CheckFinding], warnings: bool
) -> tuple[CheckFinding, ...]:
    good = ("ok", "absent", *(("warning",) if warnings else ()))
    if any(finding.verdict not in good for finding in findings):
        raise CheckFailedError(subject, findings)
    return tuple(findings)


for _check in (test_environment, test_policy, test_trainer, test_pipeline):
    # Without this, pytest would collect these functions as tests of the modules that import them.
    vars(_check)["__test__"] = False
