"""Check of an algorithm from environment to evaluation: a short training in one process, with a test of each contract.

The run uses the given configuration with fewer steps (:func:`small`). It is interrupted after the first epoch, as if by
a signal, and resumed.
"""

import contextlib
import functools
import operator
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imitate.algo.base.algo import Info
from imitate.algo.base.factory import variant_of
from imitate.checks.contracts import ContractError, Trials
from imitate.checks.env import CheckFinding, check_env
from imitate.checks.learning_and_acting import ActingCheck, NetworkRecord
from imitate.config import Config
from imitate.data import dataset_metadata
from imitate.envs import make_env
from imitate.envs.make import is_real
from imitate.evaluate.environments import environments
from imitate.evaluate.evaluate import EvalSettings, evaluate
from imitate.system.processes import Interrupt
from imitate.system.ranks import ALONE
from imitate.system.run_folder import RunFolder, create_run_folder
from imitate.system.seeding import preserved_rng, seed_everything, torch_threads
from imitate.train.batch_source import feed_of
from imitate.train.console import Console
from imitate.train.devices import choose_device
from imitate.train.online.batches import batch_source
from imitate.train.online.collector import Collector
from imitate.train.online.parts import make_collector, make_learner
from imitate.train.online.setup import (
    OnlineSetup,
    build_online,
    look_at,
    online_env_meta,
    with_own_observations,
)
from imitate.train.online.steps import Array
from imitate.train.ranks import Ranks
from imitate.train.resume import last_state
from imitate.train.run import Run
from imitate.train.setup import Setup, build

EPOCH_STEPS = 60
UPDATES = 8
"""Smallest number of updates whose gradients and weights are checked; more if gradients are accumulated."""
HORIZON = 50
SEEN = 3
"""Number of states in which the policy's actions are checked."""
ENV_STEPS = 200
MOST_COLLECTED = 64
"""Largest number of steps that each environment collects in a round, unless training sequences are longer."""
Update = Callable[[], Info | None]
"""A function that makes one update and returns its info, or None if there are no more."""
LIMITS = {
    "train.batch_size": 32,
    "experiment.rollout.horizon": HORIZON,
    "train.online.horizon": HORIZON,
    "train.online.warmup_steps": HORIZON,
    "train.online.buffer_size": 2000,
    "train.online.pretrain_updates": 2,
    "train.online.update_ratio": 0.5,
    "train.online.num_envs": 2,
}
"""Upper limits of configuration keys in the test run."""
FIXED = {
    "experiment.epoch_every_n_steps": EPOCH_STEPS,
    "experiment.validate": False,
    "experiment.rollout.enabled": False,
    "experiment.early_stopping.enabled": False,
    "experiment.render_video": False,
    "experiment.logging.log_tb": False,
    "experiment.logging.log_wandb": False,
    "experiment.save.enabled": True,
    "train.num_data_workers": 0,
    "train.compile": False,
    "train.online.num_workers": 0,
    "train.online.max_staleness": None,
    "train.online.push_every_s": 0.0,
    "cluster.on": "local",
    "train.online.curriculum.stages": (),
}


def small(config: Config) -> Config:
    """Return the configuration of a test run of a few seconds, with the same algorithm and networks."""
    values = dict(FIXED)
    for path, most in LIMITS.items():
        value = operator.attrgetter(path)(config)
        if value is not None:
            values[path] = min(value, most)
    values["train.num_epochs"] = max(2, config.train.num_epochs or 2)
    # A training sequence must fit into a rollout, and a rollout into an epoch.
    rollout = min(config.train.online.collect_steps, max(MOST_COLLECTED, config.train.seq_length))
    values["train.online.collect_steps"] = rollout
    envs = values["train.online.num_envs"] or 1
    values["experiment.epoch_every_n_steps"] = max(EPOCH_STEPS, rollout * envs)
    return config.with_overrides(values)


def check_algo(
    config: Config,
    on_finding: Callable[[CheckFinding], None] | None = None,
    only: Collection[str] | None = None,
) -> list[CheckFinding]:
    """Check everything that training, evaluation and resuming need.

    Args:
        config: a resolved configuration (:func:`imitate.train.setup.resolve`).
        on_finding: called with each finding as soon as a check is done.
        only: names of the contracts to check, including all that they depend on; None to check every contract.

    Returns:
        a finding for each contract that was checked.
    """
    with (
        tempfile.TemporaryDirectory(prefix="imitate-check-") as folder,
        preserved_rng(),
        torch_threads(config.train.num_threads),
        contextlib.closing(AlgoCheck(config, Path(folder))) as check,
    ):
        return check.run(on_finding, only)


class AlgoCheck:
    """Checks of one configuration, which share the networks, collected steps and run folder of a test run.

    Args:
        config: a resolved configuration.
        folder: existing folder in which the test run is written.

    Attributes:
        config: the configuration of the test run, with fewer steps.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        self._online = config.train.online.enabled
        self.config = small(with_own_observations(config) if self._online else config)
        self._plays = config.algo.acts and (self._online or self._evaluates(config))
        self._folder = folder
        self._device, _ = choose_device(config.train)
        self._setup: Setup | None = None
        self._watch: NetworkRecord | None = None
        self._collector: Collector | None = None
        self._run_folder: RunFolder | None = None
        self._seen: dict[str, Array] = {}
        self._seen_goal: dict[str, Array] | None = None
        self._updates: Callable[[int], Update] = self._updates_from_data

    def close(self) -> None:
        """Close the environments and remove the hooks on the networks."""
        if self._collector is not None:
            self._collector.close()
        if self._watch is not None:
            self._watch.close()

    def run(
        self,
        on_finding: Callable[[CheckFinding], None] | None = None,
        only: Collection[str] | None = None,
    ) -> list[CheckFinding]:
        """Check all contracts, or only those named in ``only``, and return their findings.

        Args:
            on_finding: called with each finding as soon as a check is done.
            only: names of the contracts to check; None to check every contract.
        """
        trials = Trials(on_finding, only)
        acts = self.config.algo.acts
        if self._plays:
            trials.add("environment", self._environment)
        trials.add("observations", self._observations)
        trials.add("networks", self._networks, after=("observations",))
        if self._online:
            trials.add("steps", self._steps, after=("networks",))
        before = "steps" if self._online else "networks"
        if acts:
            trials.add("actions", lambda: self._acting.actions(), after=(before,))
        trials.add("loss", self._loss, after=(before,))
        for name in ("gradients", "weights", "targets"):
            trials.add(name, functools.partial(self._watched, name), after=("loss",))
        if acts:
            trials.add(
                "checkpoint", lambda: self._acting.checkpoint(self._folder), after=("actions",)
            )
        trials.add("training", self._training, after=("loss",))
        trials.add("resume", self._resume, after=("training",))
        if self._plays:
            trials.add("evaluation", self._evaluation, after=("training", "actions"))
        return trials.findings

    @property
    def setup(self) -> Setup:
        """Algorithm, devices and data of the test run; exists once the contract "networks" was checked."""
        assert self._setup is not None
        return self._setup

    @property
    def _acting(self) -> ActingCheck:
        return ActingCheck(self.setup, self._seen, self._seen_goal)

    # ---- environment and networks -----------------------------------------------------------------

    def _metas(self) -> Sequence[Mapping[str, Any]]:
        if self._online:
            return (online_env_meta(self.config),)
        return environments(self.config)

    def _evaluates(self, config: Config) -> bool:
        """Return true if the configuration evaluates the policy in rollouts, and not only on real robots."""
        enabled = config.experiment.rollout.enabled
        return enabled and not all(is_real(meta) for meta in self._metas())

    def _environment(self) -> str:
        words = []
        for meta in self._metas():
            env_args = {key: value for key, value in meta.items() if key not in ("key", "lang")}
            make = functools.partial(
                make_env, env_args, obs_keys=self.config.all_obs_keys, team=True
            )
            findings = check_env(make, env_args, steps=ENV_STEPS)
            broken = [finding for finding in findings if finding.verdict == "error"]
            if broken:
                raise ContractError(
                    "; ".join(f"{finding.name}: {finding.words}" for finding in broken)
                )
            warnings = sum(finding.verdict == "warning" for finding in findings)
            words.append(findings[0].words)
            if warnings:
                words[-1] += f" ({warnings} warnings; run imitate check-env)"
        return "; ".join(words)

    def _observations(self) -> str:
        keys = self.config.all_obs_keys
        if self._online:
            shapes: Mapping[str, Any] = look_at(dict(self._metas()[0]), self.config).obs_shapes
        else:
            shapes = dataset_metadata(self.config)[1]
        return ", ".join(f"{key} {tuple(shapes[key])}" for key in keys if key in shapes)

    def _networks(self) -> str:
        self._setup = self._built()
        self.config = self._setup.config
        if not self._online:
            self._see_data()
        nets = self._setup.algo.nets
        weights = sum(p.numel() for p in nets.parameters())
        return f"{variant_of(self._setup.algo)}: {', '.join(nets)}; {weights:,} weights"

    def _built(self, *, resumed: bool = False) -> Setup:
        seed_everything(self.config.train.seed)
        make: Any = build_online if self._online else build
        setup: Setup = make(self.config, self._device, resumed=resumed)
        return setup

    # ---- steps and updates ------------------------------------------------------------------------

    def _steps(self) -> str:
        """Collect steps with random actions until the warm-up is over, then with the policy, for the later checks."""
        setup, online = self.setup, self.config.train.online
        assert isinstance(setup, OnlineSetup)
        learner, collector = make_learner(setup), make_collector(setup)
        self._collector = collector
        rounds = -(-(online.warmup_steps + EPOCH_STEPS) // online.collect_steps)
        if setup.algo.experience == "rollout":
            rounds = 1
        total, episodes, seen = 0, 0, []
        for number in range(rounds):
            random = number * online.collect_steps < online.warmup_steps
            collected = collector.collect(online.collect_steps, random=random)
            if collected.messages:
                raise ContractError("; ".join(collected.messages))
            learner.take(collected)
            total, episodes = total + collected.num_steps, episodes + len(collected.episodes)
            seen += [step.obs for step in collected.steps]
        chosen = [seen[number] for number in np.linspace(0, len(seen) - 1, SEEN).astype(int)]
        self._seen = {key: np.stack([obs[key][0] for obs in chosen]) for key in chosen[0]}
        self._updates = lambda epoch: functools.partial(
            next, learner.updates_due(epoch, self._wanted_updates), None
        )
        return f"{total} in {episodes} whole episodes"

    def _see_data(self) -> None:
        """Read the states of the demonstrations in which the policy's actions are checked."""
        raw = next(self._batches())
        self._seen = {key: np.asarray(x[:SEEN, 0]) for key, x in raw["obs"].items()}
        if self.setup.algo.goal_shapes:
            self._seen_goal = {key: np.asarray(x[:SEEN]) for key, x in raw["goal_obs"].items()}

    def _batches(self) -> Iterator[dict[str, Any]]:
        feed = feed_of(self.setup, Ranks())
        try:
            yield from feed.batches(0)
        finally:
            feed.close()

    def _updates_from_data(self, epoch: int) -> Update:
        algo, batches = self.setup.algo, self._batches()
        return lambda: algo.train_on_batch(algo.process_batch_for_training(next(batches)), epoch)

    @property
    def _wanted_updates(self) -> int:
        return max(UPDATES, 2 * int(self.config.train.gradient_accumulation))

    def _loss(self) -> str:
        """Make and record updates of the first epoch; if some weights got no gradient, also of the last epoch."""
        algo = self.setup.algo
        algo.set_train()
        watch = self._watch = NetworkRecord(algo)
        for epoch in (1, self.config.train.num_epochs or 1):
            update = self._updates(epoch)
            for _ in range(self._wanted_updates):
                if not watch.update(update):
                    break
            if not watch.missing():
                break
        if not watch.updates:
            raise ContractError("the algorithm made no update after the steps were collected")
        return watch.loss()

    def _watched(self, name: str) -> str:
        """Check the recorded updates for ``name``: "gradients", "weights" or "targets"."""
        words: str = getattr(self._watch, name)()
        return words

    # ---- the run ----------------------------------------------------------------------------------

    def _training(self) -> str:
        folder = create_run_folder(self._folder, "run")
        self._run_folder = folder
        folder.config.write_text(self.config.to_json() + "\n", encoding="utf-8")
        state = self._trained(self._built(), epochs=1)
        return f"interrupted after an epoch of {state['step']} steps, and saved"

    def _resume(self) -> str:
        assert self._run_folder is not None
        saved = last_state(self._run_folder)
        assert saved is not None
        before = saved["train_state"]["step"]
        state = self._trained(self._built(resumed=True), epochs=2, ckpt=saved)
        if state["step"] <= before:
            raise ContractError(
                f"the resumed run made no steps: it began at step {before} and ended at {state['step']}"
            )
        return f"from step {before} to {state['step']}"

    def _trained(
        self, setup: Setup, *, epochs: int, ckpt: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Train until the run has had ``epochs`` epochs, and return its counters, such as "step".

        Args:
            setup: the parts of the run.
            epochs: number of epochs after which the run is interrupted.
            ckpt: checkpoint from which the run is resumed; None to start a new run.
        """
        assert self._run_folder is not None
        folder, console, interrupt = self._run_folder, Console(quiet=True), _AfterEpochs(epochs)
        source = batch_source(setup, folder, console, ALONE)
        run = Run(setup, source, folder, console, interrupt, ckpt)
        interrupt.run = run
        try:
            run.loop()
        finally:
            run.close()
        return run.state.to_dict()

    def _evaluation(self) -> str:
        assert self._run_folder is not None
        seed = self.config.experiment.rollout.seed
        settings = EvalSettings(episodes=2, horizon=HORIZON, seed=seed)
        result = evaluate(self._run_folder.last, settings=settings)
        failed = [episode.error for episode in result.episodes if episode.error]
        if failed:
            raise ContractError(f"{len(failed)} of 2 episodes ended with an error: {failed[0]}")
        if not np.isfinite(result.returns).all():
            raise ContractError(f"the returns {result.returns} of 2 episodes contain NaN or inf")
        return f"2 episodes of {result.env_name}, returns {', '.join(f'{x:.4g}' for x in result.returns)}"


class _AfterEpochs(Interrupt):
    """An interrupt that behaves as if SIGTERM arrived after a number of epochs."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self.run: Run | None = None

    @property
    def signal(self) -> int | None:
        """SIGTERM after the given number of epochs, None before."""
        over = self.run is not None and self.run.state.epoch >= self._epochs
        return 15 if over else None

    @signal.setter
    def signal(self, number: int | None) -> None:
        """Ignore signals that are set."""
