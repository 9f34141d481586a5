"""Open the policies named on the command line: checkpoints, run folders, bundles and policy servers."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from imitate.cli.options import tell_saved_names
from imitate.deploy.schema import Schema
from imitate.errors import UserError
from imitate.policy.renaming import parse_rename
from imitate.system.extras import missing
from imitate.system.missing import no_such
from imitate.system.text import SKILL

if TYPE_CHECKING:
    from imitate.algo.base.algo import Algo
    from imitate.algo.slots.planner import Planner
    from imitate.deploy.robot.robot import Robot
    from imitate.policy.loading import Precision

_WAITED_S, _BACKGROUND_S = 0.3, 1.0

PolicyName = Annotated[
    str,
    typer.Argument(
        metavar="POLICY",
        help="Checkpoint, run folder, bundle, or address of a server: ws://HOST:PORT.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="File with the token that the policy server requires."),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        help="PEM file with the certificate of the authority that signed a wss:// server's certificate; default: the "
        "system's authorities.",
    ),
]
ResizeImages = Annotated[
    bool,
    typer.Option(
        "--resize",
        help="Resize camera images to the image size of the demonstrations if both have the same aspect ratio.",
    ),
]
UnlikeTraining = Annotated[
    bool,
    typer.Option(
        "--unlike-training",
        help="Move the robot even if its observations or actions differ from the training data.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout-s",
        min=0.01,
        help="Seconds to wait for a policy server's answer; default: 0.3, or 1 with --async.",
    ),
]

InBackground = Annotated[
    bool, typer.Option("--async", help="Predict the next chunk while the current one is executed.")
]
JOINS = ("replace", "blend", "fade", "rtc", "rtc-vjp", "prefix")


def _known_join(name: str) -> str:
    """Return the value of ``--join``; raise UserError if it is unknown."""
    if name not in JOINS:
        raise UserError(f"--join {name}: expected {', '.join(JOINS[:-1])} or {JOINS[-1]}")
    return name


Join = Annotated[
    str,
    typer.Option(
        "--join",
        callback=_known_join,
        help="How the new chunk follows the old one with --async. replace: use it at once; blend: average both where "
        "they overlap; fade: begin at the present action and approach the new chunk; rtc, rtc-vjp: real-time "
        "chunking for flow and diffusion policies; prefix: real-time chunking for policies trained with "
        "algo.prefix.max_delay.",
    ),
]


@dataclass(frozen=True)
class FoundPolicy:
    """A policy named on the command line.

    Attributes:
        actor: the policy that is called at each control step, see :class:`imitate.deploy.robot.loop.LoopPolicy`.
        env_args: env_args in the checkpoint if its environment is simulated, otherwise empty.
        execute: number of actions of a chunk that are executed.
        schema: observations and actions; None if a server does not report them.
        checkpoint: content of the checkpoint; None for a server or a bundle.
        path: path of the checkpoint or the bundle; None for a server.
        planner: planner of a planning policy whose time is limited by ``--plan-budget-ms``; None without a limit.
    """

    actor: Any
    env_args: Mapping[str, Any]
    execute: int = 1
    schema: Schema | None = None
    checkpoint: Mapping[str, Any] | None = None
    path: Path | None = None
    planner: Planner | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each observation at one step; empty if a server does not report its observations."""
        seen = {} if self.schema is None else self.schema.observations
        return {key: observed.shape for key, observed in seen.items()}


@dataclass(frozen=True)
class PolicyOpener:
    """Opens policies according to the options of a command.

    Attributes:
        token_file: file with the token of a server.
        tls_ca: PEM file of the authority that signed a server's certificate; None for the system's authorities.
        timeout_s: seconds to wait for a server's answer; None means 0.3, or 1 with ``join``.
        device: device on which a checkpoint's networks run.
        resize: true to resize images to the sizes in the demonstrations.
        join: value of ``--join`` for predicting chunks in the background, or None to predict within the control step.
        rename: entries of ``--rename``.
        precision: precision of a checkpoint's large linear layers, see
            :func:`imitate.policy.loading.policy_from_checkpoint`.
        skill: number of the skill that a policy with several skills uses, or None to take it from the observations.
        plan_budget_ms: milliseconds after which a planning policy takes the best plan found so far; None for no limit.
    """

    token_file: Path | None = None
    timeout_s: float | None = None
    device: str | None = None
    join: str | None = None
    tls_ca: Path | None = None
    resize: bool = False
    rename: Sequence[str] = ()
    precision: Precision = "fp32"
    skill: int | None = None
    plan_budget_ms: float | None = None

    def open(self, text: str, stack: contextlib.ExitStack) -> FoundPolicy:
        """Open the policy that ``text`` names, see :meth:`_opened`, and set its skill if one is chosen."""
        found = self._opened(text, stack)
        if self.skill is None:
            return found

        actor = SkilledPolicy(found.actor, found.schema, self.skill)
        return replace(found, actor=actor, schema=actor.schema)

    def _opened(self, text: str, stack: contextlib.ExitStack) -> FoundPolicy:
        """Load a checkpoint or a bundle, or connect to a server.

        Args:
            text: checkpoint, run folder, bundle, or ``ws://`` address.
            stack: exit stack that closes the connection.

        Raises:
            UserError: there is no such policy, or it cannot be read or reached.
        """
        from imitate.deploy.bundle.archive import is_bundle

        is_served = "://" in text
        if self.rename and not is_served and is_bundle(text):
            raise UserError(
                f"--rename: {text} is a bundle, whose names were fixed when it was exported: name its checkpoint "
                "instead, or leave --rename out"
            )
        if is_served and self.precision != "fp32":
            raise UserError(
                f"--precision {self.precision}: {text} is a server: give --precision to "
                "imitate serve"
            )
        if self.plan_budget_ms is not None and (is_served or is_bundle(text)):
            raise UserError(
                f"--plan-budget-ms: {text} is a server or a bundle, which cannot be limited: leave the option out, or "
                "name the checkpoint of a policy that plans"
            )
        if text.startswith(("ws://", "wss://")):
            return self._served(text, stack)
        if "://" in text:
            raise UserError(f"{text}: expected an address that begins with ws:// or wss://")
        if is_bundle(text):
            return self._bundled(Path(text))
        from imitate.deploy.server.served import schema_of
        from imitate.policy.loading import policy_from_checkpoint
        from imitate.system.run_folder import find_checkpoint

        path = find_checkpoint(Path(text))
        rename = parse_rename(self.rename)
        found, ckpt = policy_from_checkpoint(
            device=self.device, ckpt_path=path, rename=rename, precision=self.precision
        )
        tell_saved_names(path, ckpt.get("rename"))
        planner = self._planner(found.algo, path)
        execution, schema = found.algo.execution, schema_of(found)
        actor: Any = found
        if self.resize:
            from imitate.deploy.resizing import ResizedPolicy

            actor = ResizedPolicy(found, schema)
        return FoundPolicy(
            actor,
            _simulator(ckpt.get("env_metadata") or {}),
            1 if execution is None else execution.execute,
            schema,
            {**ckpt, "rename": found.rename},
            path,
            planner,
        )

    def _planner(self, algo: Algo, path: Path) -> Planner | None:
        """Limit the planner of an algorithm to ``--plan-budget-ms`` and return it; None if no limit is given."""
        if self.plan_budget_ms is None:
            return None
        found: Planner | None = getattr(algo, "planner", None)
        if found is None:
            raise UserError(
                f"--plan-budget-ms: {path} contains a policy that does not plan: leave the option out"
            )
        found.budget_s = self.plan_budget_ms / 1000.0
        return found

    def _bundled(self, path: Path) -> FoundPolicy:
        from imitate.deploy.bundle.policy import BundlePolicy

        refuse_device(self.device, self.precision)
        found = BundlePolicy(path)
        execution = found.spec.execution
        execute = 1 if execution is None else execution.execute
        actor: Any = found
        if self.resize:
            from imitate.deploy.resizing import ResizedPolicy

            actor = ResizedPolicy(found, found.schema)
        environment = _simulator(found.spec.environment)
        return FoundPolicy(actor, environment, execute, found.schema, path=path)

    def _served(self, url: str, stack: contextlib.ExitStack) -> FoundPolicy:
        try:
            from imitate.deploy.server.client import RemoteError, RemotePolicy
        except ImportError as error:
            raise UserError(f"{url}: {missing('deploy', error)}") from error

        token = read_token(self.token_file)
        timeout_s = self.timeout_s or (_WAITED_S if self.join is None else _BACKGROUND_S)
        try:
            remote = RemotePolicy(
                url,
                token=token,
                timeout_s=timeout_s,
                tls=_trusting(self.tls_ca),
                resize=self.resize,
            )
        except RemoteError as error:
            raise UserError(str(error)) from error
        actor: Any = stack.enter_context(remote)
        if self.rename and remote.schema is not None:
            raise UserError(f"--rename: {url} is a server: give --rename to imitate serve")
        if self.rename:  # openpi's server does not report its observation names
            from imitate.policy.renaming import RenamedPolicy

            actor = RenamedPolicy(actor, parse_rename(self.rename))
        return FoundPolicy(actor, {}, remote.execute, remote.schema)

    def acting(self, found: FoundPolicy, rate_hz: float, stack: contextlib.ExitStack) -> Any:
        """Return the policy for the control loop; if :attr:`join` is set, it predicts in the background.

        Args:
            found: policy that :meth:`open` returned.
            rate_hz: control rate in Hz.
            stack: exit stack that ends the background thread.

        Raises:
            UserError: background prediction is impossible: the server is too old, the policy is not trained for the
                join ``prefix``, or a bundle does not support real-time chunking.
        """
        if self.join is None:
            return found.actor
        from imitate.policy.asynchronous import GUIDANCE, AsynchronousPolicy

        schema = getattr(found.actor, "schema", None)
        if schema is not None and not schema.history:
            raise UserError(
                "--async: the server runs an older version of imitate, which cannot predict chunks in the "
                "background: install the same version on both machines"
            )
        guidance = GUIDANCE.get(self.join)
        if guidance is not None and not getattr(found.actor, "can_be_guided", True):
            raise UserError(
                f"--join {self.join}: a bundle does not support real-time chunking: choose blend, fade or replace, or "
                "name the checkpoint"
            )
        chosen: Any = self.join if guidance is None else "replace"
        acting = stack.enter_context(
            AsynchronousPolicy(
                found.actor,
                rate_hz,
                execute=found.execute,
                join=chosen,
                guidance=guidance,
            )
        )
        if found.schema is not None and found.schema.chunk == 1:
            typer.echo(
                "warning: --async: the policy plans one action at a time, so the robot holds "
                "still while the next one is predicted, at least at every other step: leave "
                "--async out",
                err=True,
            )
        return acting


def _simulator(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the env_args if they describe a simulated environment, otherwise an empty dictionary."""
    return meta if meta.get("type") in (1, 2) else {}


def _trusting(path: Path | None) -> ssl.SSLContext | None:
    """Return a TLS context that trusts the certificates in a file, for ``--tls-ca``."""
    if path is None:
        return None
    try:
        return ssl.create_default_context(cafile=path.expanduser())
    except OSError as error:  # ssl.SSLError is a subclass of OSError
        raise UserError(
            f"--tls-ca {path}: cannot be used as certificates: {error}; give a PEM file"
        ) from error


def look_before_motion(
    found: FoundPolicy, body: Robot, unlike_training: bool
) -> Callable[[Mapping[str, Any]], str] | None:
    """Compare the robot's action limits and first observation with the training data that the policy reports.

    Returns:
        Function that compares later observations too, for :class:`imitate.deploy.robot.loop.ControlLoop`; None if the
        policy reports nothing, or with ``unlike_training``.

    Raises:
        UserError: robot and training differ, and ``unlike_training`` is false.
    """
    if found.schema is None:
        return None
    from imitate.deploy.check.first_look import (
        LaterLook,
        first_look,
        look_at_actions,
        look_at_pose,
    )
    from imitate.deploy.check.inputs import Severity
    from imitate.deploy.check.statistics import training_of, training_of_schema
    from imitate.deploy.robot.driver import first_seen, pose_of

    later = None
    low, high, seen = found.schema.action_low, found.schema.action_high, first_seen(body)
    findings = look_at_actions(low, high, body.limits) + look_at_pose(
        pose_of(body, seen), low, high
    )
    kinds = {key: spec.kind for key, spec in found.schema.observations.items()}
    training = training_of_schema(found.schema.ranges, kinds)
    if found.checkpoint is not None:
        training = training_of(found.checkpoint, None, kinds, reads_files=False)
    if training.ranges:
        findings += first_look(seen.values, kinds, training)
        later = None if unlike_training else LaterLook(kinds, training)
    for finding in findings:
        if finding.level is Severity.problem and not unlike_training:
            raise UserError(
                f"{finding.words}; the robot was not moved: correct the difference (see imitate check-deploy), or "
                "allow it with --unlike-training"
            )
        word = "note" if finding.level is Severity.note else "warning"
        typer.echo(f"{word}: {finding.words}", err=True)
    return later


def look_before_replay(path: Path, body: Robot) -> None:
    """Compare a robot's observations with a recording: names, units, order and signs, but not the robot's pose.

    Args:
        path: demonstrations that will be replayed on the robot, or to which episodes will be added.
        body: connected robot.

    Raises:
        UserError: the robot is not the recorded one, or observes in other units, another order or other signs.
    """
    from imitate.data import DatasetFile
    from imitate.data.file.features import names_in
    from imitate.deploy.check.first_look import first_look, look_at_pose
    from imitate.deploy.check.inputs import Severity
    from imitate.deploy.check.statistics import TrainingObservations, measured
    from imitate.deploy.robot.driver import first_seen, pose_of
    from imitate.deploy.robot.loop import check_names

    with DatasetFile(path) as file:
        demo = file.demos()[0]
        shapes = {key: file.shape(demo, f"obs/{key}")[1:] for key in file.obs_keys(demo)}
        kinds = {key: "low_dim" for key, shape in shapes.items() if len(shape) == 1}
        names = {key.removeprefix("obs/"): named for key, named in names_in(file).items()}
        actions = np.concatenate([file.read(name, "actions") for name in file.demos()])
    check_names(body, SimpleNamespace(obs_keys=tuple(kinds), number_names=names))
    seen = first_seen(body)
    findings = look_at_pose(pose_of(body, seen), actions.min(axis=0), actions.max(axis=0))
    findings += first_look(seen.values, kinds, TrainingObservations(measured(path, kinds), ""))
    for finding in findings:
        is_place = finding.kind == "units" and "instead of" not in finding.words
        if finding.level is Severity.problem and not is_place:
            raise UserError(
                f"{finding.words}, compared with {path}; the robot was not moved: correct the robot's driver, or move "
                "the robot to the start of a recorded episode"
            )


def rate_of(policy: Any, given: float | None) -> float:
    """Return the given control rate in Hz, or if it is None the rate of the policy's demonstrations.

    Raises:
        UserError: neither is known.
    """
    rate: float | None = given or getattr(policy, "control_freq", None)
    if rate is None:
        raise UserError(
            "the policy does not contain the control rate of its demonstrations: give it with --rate-hz"
        )
    return rate


def refuse_device(device: str | None, precision: Precision) -> None:
    """Raise UserError if a bundle is requested on a GPU or in another precision."""
    if precision != "fp32":
        raise UserError(
            f"--precision {precision}: the precision of a bundle was fixed when it was exported: leave the option "
            "out, or name the checkpoint"
        )
    if device not in (None, "cpu"):
        raise UserError(
            f"--device {device}: bundles run on the CPU: leave the option out, or name the checkpoint"
        )


def read_token(path: Path | None) -> str | None:
    """Return the token in a file, without white space around it; None if there is no file.

    Raises:
        UserError: the file cannot be read or is empty.
    """
    if path is None:
        return None
    try:
        token = path.expanduser().read_text().strip()
    except FileNotFoundError:
        raise UserError(f"--token-file {no_such(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--token-file {path}: cannot be read: {error}") from error
    if not token or len(token.split()) != 1 or not token.isascii():
        raise UserError(
            f"--token-file {path}: expected a file with one word of ASCII characters, the token"
        )
    return token


class SkilledPolicy:
    """Policy that always gets the same skill, one-hot, as observation ``skill``.

    Attributes that are not defined here are taken from ``policy``.

    Args:
        policy: policy with the interface of :class:`imitate.RolloutPolicy`.
        schema: observations and actions of ``policy``; None if unknown.
        skill: number of the skill, from 0.

    Attributes:
        schema: observations and actions, without the observation ``skill``.

    Raises:
        UserError: the policy has no such skill.
    """

    def __init__(self, policy: Any, schema: Schema | None, skill: int) -> None:
        known = {} if schema is None else schema.observations
        if schema is None or SKILL not in known:
            raise UserError(
                f"--skill {skill}: the policy has no observation '{SKILL}', so it has no skills to choose from: leave "
                "the option out"
            )
        size = known[SKILL].shape[0]
        if not 0 <= skill < size:
            raise UserError(
                f"--skill {skill}: the policy has only the skills 0 to {size - 1}: choose one of them"
            )
        rest = {key: seen for key, seen in known.items() if key != SKILL}
        self._policy, self._skill = policy, np.eye(size, dtype=np.float32)[skill]
        self.schema = replace(schema, observations=rest)
        self.obs_keys = tuple(rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def _with_skill(self, ob: Mapping[str, Any]) -> dict[str, Any]:
        return {**ob, SKILL: self._skill}

    def __call__(self, ob: Mapping[str, Any], *rest: Any, **named: Any) -> Any:
        """Return the policy's action for an observation without ``skill``."""
        return self._policy(self._with_skill(ob), *rest, **named)

    def predict_chunk(self, history: Sequence[Mapping[str, Any]], **rest: Any) -> Any:
        """Predict the chunk for observations without ``skill``, see :meth:`imitate.RolloutPolicy.predict_chunk`."""
        return self._policy.predict_chunk([self._with_skill(ob) for ob in history], **rest)
