"""Evaluations during training: rollouts, with their schedule, settings and results, and validation on held-out demos.

Validation measures loss and action error, and the calibration of the policy's uncertainty.

Worker processes run the episodes beside the training, and a thread waits for them. At most one evaluation runs and one
waits. A newer request replaces the waiting one. The trainer requests the last epoch at the end, so it is
always evaluated.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.data import SequenceDataset, ShuffledBatches
from imitate.evaluate.environments import EnvTrial
from imitate.evaluate.evaluate import EvalSettings, evaluate
from imitate.evaluate.job import default_workers
from imitate.evaluate.result import EpisodeResult, EvalResult, file_name, label
from imitate.evaluate.worker import EpisodePool, EvaluationCancelledError
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.policy.uncertainty import MOST_STEPS, Calibration
from imitate.system.run_folder import RunFolder
from imitate.system.seeding import preserved_rng
from imitate.system.text import counted
from imitate.train.batch_source import make_loader
from imitate.train.checkpoints import Checkpoints
from imitate.train.console import Console
from imitate.train.metrics import EpochMeans
from imitate.train.online.curriculum import Curriculum
from imitate.train.outcomes import describe, rollout_numbers
from imitate.train.setup import Setup


@dataclass(frozen=True)
class EvalRequest:
    """Request to evaluate the checkpoint of an epoch."""

    epoch: int
    step: int
    checkpoint: Path


@dataclass(frozen=True)
class EvalOutcome:
    """Outcome of an evaluation: a result per environment, or the reason why it failed."""

    request: EvalRequest
    results: tuple[EvalResult, ...]
    error: str | None
    wall_s: float


Evaluate = Callable[[EvalRequest], Sequence[EvalResult]]


class BackgroundEvaluations:
    """Queue of evaluations, run one after the other in a thread.

    Args:
        evaluate: runs one evaluation; called in the thread.
    """

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._outcomes: queue.SimpleQueue[EvalOutcome] = queue.SimpleQueue()
        self._running: EvalRequest | None = None
        self._waiting: EvalRequest | None = None

    @property
    def busy_with(self) -> int | None:
        """Epoch that is being evaluated, or None."""
        return None if self._running is None else self._running.epoch

    @property
    def pending(self) -> set[int]:
        """Epochs that are being evaluated or wait for their evaluation."""
        return {r.epoch for r in (self._running, self._waiting) if r is not None}

    def request(self, request: EvalRequest) -> EvalRequest | None:
        """Start an evaluation or queue it; return the queued request that it replaces, or None."""
        if self._running is None:
            self._start(request)
            return None
        left_out, self._waiting = self._waiting, request
        return left_out

    def collect(self, timeout_s: float = 0.0) -> EvalOutcome | None:
        """Return a finished evaluation and start the queued one, or return None if none ends within ``timeout_s``."""
        if self._running is None:
            return None
        try:
            outcome = self._outcomes.get(block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Empty:
            return None
        self._running = None
        if self._waiting is not None:
            following, self._waiting = self._waiting, None
            self._start(following)
        return outcome

    def _start(self, request: EvalRequest) -> None:
        self._running = request
        threading.Thread(target=self._work, args=(request,), daemon=True).start()

    def _work(self, request: EvalRequest) -> None:
        self._outcomes.put(attempt(self._evaluate, request))


def attempt(evaluate: Evaluate, request: EvalRequest) -> EvalOutcome:
    """Run one evaluation; return a failure as an outcome with ``error``, because training continues without it."""
    start = time.perf_counter()
    results: tuple[EvalResult, ...] = ()
    error: str | None = None
    try:
        results = tuple(evaluate(request))
    except EvaluationCancelledError:
        error = "cancelled"
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    return EvalOutcome(request, results, error, time.perf_counter() - start)


VIDEO_EPISODES = 4
OnRecord = Callable[[EvalRequest, dict[str, float]], set[str]]


class Rollouts:
    """Evaluations of a run's checkpoints, in the background or at once.

    Args:
        experiment: section ``experiment`` of the configuration.
        on_record: called with a request and its metrics; logs them, keeps the checkpoint if it is a best one, and
            returns the kinds ("best", "return") in which it is the best.
        curriculum: provides the environments of an evaluation in place of ``env_metas``; None if they never change.
        device: device of the evaluated policies.

    Attributes:
        best_epoch: epoch of the best evaluation so far.
        failures: number of evaluations without a result.
    """

    def __init__(
        self,
        experiment: Any,
        folder: RunFolder,
        env_metas: Sequence[Mapping[str, Any]],
        checkpoints: Checkpoints,
        console: Console,
        on_record: OnRecord,
        curriculum: Curriculum | None = None,
        device: str = "cpu",
    ) -> None:
        self.best_epoch: int | None = None
        self.horizon_noted = False
        self.failures: list[str] = []
        self.latest: dict[int, tuple[EvalResult, ...]] = {}
        self._experiment = experiment
        self._settings = experiment.rollout
        self._folder = folder
        self._env_metas = env_metas
        self._checkpoints = checkpoints
        self._console = console
        self._on_record = on_record
        self._curriculum = curriculum
        wanted = self._settings.num_workers
        self._workers = default_workers(self._settings.n) if wanted is None else wanted
        self._background = self._settings.background and self._workers > 0
        self._pool = EpisodePool(self._workers) if self._workers > 0 else None
        if self._pool is not None and self._background and wanted is None:
            self._pool.limit = self.shared_workers
        rollout = self._settings
        self._evaluation = EvalSettings(
            episodes=rollout.n,
            horizon=rollout.horizon,
            seed=rollout.seed,
            workers=max(1, self._workers),
            device=device,
            terminate_on_success=rollout.terminate_on_success,
            give_up_after=rollout.give_up_after,
            video_episodes=VIDEO_EPISODES,
            video_skip=experiment.video_skip,
            step_timeout_s=rollout.step_timeout_s if self._pool is not None else None,
        )
        self._queue = BackgroundEvaluations(self._evaluate)
        self._playing, self._played = 0, 0

    @property
    def shared_workers(self) -> int:
        """Number of evaluation workers during training, which itself needs one core; 0 for none in the background."""
        if not (self._settings.enabled and self._background):
            return 0
        if self._settings.num_workers is not None:
            return self._workers
        return max(1, self._workers - 1)

    def try_environments(
        self, trials: Sequence[EnvTrial], stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Open each environment once, in a worker process if there are any.

        Args:
            trials: environments to try.
            stopped: returns true when the training should end.

        Raises:
            EnvError: an environment cannot be made, fails, takes too long, or does not fit the data.
        """
        if not self._settings.enabled:
            return
        for trial in trials:
            if self._pool is None:
                trial.play()
                continue
            with suppress(EvaluationCancelledError):
                self._pool.try_env(trial, self._settings.step_timeout_s, stopped)

    def due(self, epoch: int) -> bool:
        """Return true if this epoch is evaluated."""
        settings = self._settings
        return bool(settings.enabled and epoch > settings.warmstart and epoch % settings.rate == 0)

    def submit(self, epoch: int, step: int) -> None:
        """Evaluate the candidate checkpoint of this epoch, now or as soon as the workers are free."""
        request = EvalRequest(epoch, step, self._checkpoints.candidate(epoch))
        if not self._background:
            self._file(attempt(self._evaluate, request))
            return
        left_out = self._queue.request(request)
        if left_out is not None:
            left_out.checkpoint.unlink(missing_ok=True)
            self._console.say(
                f"evaluation of epoch {left_out.epoch} skipped: epoch {self._queue.busy_with} is still evaluated, and "
                f"epoch {epoch} is newer"
            )

    def pulse_words(self) -> str:
        """Describe the progress of the running evaluation."""
        total = self._settings.n * len(self._places)
        return f"evaluating epoch {self._playing}: {self._played}/{counted(total, 'episode')}"

    @property
    def _places(self) -> Sequence[Mapping[str, Any]]:
        """Return the env_args of the next evaluation."""
        return self._env_metas if self._curriculum is None else self._curriculum.evaluated

    def _count(self, episode: EpisodeResult) -> None:
        """Count an episode; called in another thread if evaluations run in the background."""
        self._played += 1
        if not self._background:
            self._console.pulse(self.pulse_words)

    def collect(self, timeout_s: float = 0.0) -> None:
        """Record the evaluations that have finished."""
        outcome = self._queue.collect(timeout_s)
        if outcome is not None:
            self._file(outcome)

    @property
    def pending(self) -> set[int]:
        """Return the epochs whose evaluation has not finished."""
        return self._queue.pending

    def training_is_over(self) -> None:
        """Let evaluations also use the core of the training."""
        if self._pool is not None:
            self._pool.limit = self._workers

    def close(self) -> None:
        """End the workers; an evaluation in progress is lost (a resumed run does it again)."""
        if self._pool is not None:
            self._pool.cancel()
            while self._queue.pending:
                self._queue.collect(timeout_s=0.5)
            self._pool.close()

    def _evaluate(self, request: EvalRequest) -> list[EvalResult]:
        results = []
        self._playing, self._played = request.epoch, 0
        for number, env_meta in enumerate(self._places):
            name = f"epoch_{request.epoch}" + (f"_{file_name(label(env_meta))}" if number else "")
            video = self._folder.videos / f"{name}.mp4" if self._experiment.render_video else None
            settings = replace(self._evaluation, video=video)
            played = evaluate(
                request.checkpoint, env_meta, settings, pool=self._pool, on_episode=self._count
            )
            results.append(played)
        return results

    def _file(self, outcome: EvalOutcome) -> None:
        """Log an evaluation, and keep its checkpoint if it is a best one."""
        epoch, candidate = outcome.request.epoch, outcome.request.checkpoint
        if outcome.error == "cancelled":
            return
        if outcome.error is not None:
            message = f"evaluation of epoch {epoch} failed: {outcome.error}"
            self.failures.append(message)
            self._console.say(f"error: {message}", always=True)
            candidate.unlink(missing_ok=True)
            return
        self.latest[epoch] = outcome.results
        if self._curriculum is None:
            numbers = rollout_numbers(outcome.results)
        else:
            numbers = rollout_numbers(outcome.results[:1]) | self._curriculum.numbers(
                outcome.results
            )
        numbers["Timing/Rollout_s"] = round(outcome.wall_s, 3)
        if "best" in self._on_record(outcome.request, numbers):
            self.best_epoch = epoch
        candidate.unlink(missing_ok=True)
        for result in outcome.results:
            self._console.say(f"epoch {epoch}: {describe(result)}")
            for warning in result.warnings:
                self._console.say(f"warning: {warning}")
            self._note_horizon(result)
        if not self._experiment.keep_all_videos:
            self._drop_videos({epoch, self.best_epoch})

    def _note_horizon(self, result: EvalResult) -> None:
        """Warn once per run if a short horizon may explain failures."""
        note = result.horizon_note("--set experiment.rollout.horizon=")
        if note is not None and not self.horizon_noted:
            self.horizon_noted = True
            self._console.say(f"note: {note}")

    def _drop_videos(self, keep: set[int | None]) -> None:
        for path in self._folder.videos.glob("epoch_*.mp4"):
            number = path.stem.split("_")[1]
            if number.isdecimal() and int(number) not in keep:
                path.unlink(missing_ok=True)


class Validation:
    """Validation on the same batches at every call; it leaves the training's random generators and schedules unchanged.

    Args:
        config: the run's configuration.
        valid_set: held-out samples, normalized with the training set's statistics.
    """

    def __init__(self, config: Any, valid_set: Any, device: torch.device) -> None:
        self._config = config
        self._valid_set = valid_set
        self._device = device

    def run(
        self, algo: Algo, epoch: int, on_batch: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Compute the `Valid/...` metrics with the current weights; call ``on_batch`` after each batch."""
        config = self._config
        batches = ShuffledBatches(len(self._valid_set), config.train.batch_size, config.train.seed)
        loader = iter(make_loader(self._valid_set, batches, 0, self._device))
        means = EpochMeans()
        with preserved_rng(), torch.no_grad():
            # A fixed seed gives the same random crops and latents at every validation.
            torch.manual_seed(config.train.seed)
            algo.set_eval()
            for number in range(config.experiment.validation_epoch_every_n_steps):
                raw = next(loader)
                batch = algo.process_batch_for_training(raw)
                means.add(algo.train_on_batch(batch, epoch, validate=True))
                if number == 0:
                    error = action_error(algo, raw, config.train.frame_stack)
                on_batch()
        algo.set_train()
        log = algo.log_info(means.means())
        numbers = {f"Valid/{key}": value for key, value in log.items() if "Optimizer/" not in key}
        if error is not None:
            numbers["Valid/Action_Error"] = error
        return numbers


def action_error(algo: Algo, raw: dict[str, Any], frame_stack: int) -> float | None:
    """Compute the mean |policy's action - demonstrated action|, in the data's units, over the windows of one raw batch.

    Returns None if there is no policy, or if its actions are converted at run time and so differ from the recorded
    ones.
    """
    actions: Tensor = raw["actions"]
    if not algo.algo_config.acts or actions.shape[-1] != algo.preprocess.actions.sent_dim:
        return None
    total = count = 0.0
    for t, predicted, real in acted(RolloutPolicy(algo), raw, frame_stack):
        difference = (torch.from_numpy(predicted) - actions[:, t].cpu()).abs().mean(-1)[real]
        total += float(difference.sum())
        count += float(difference.numel())
    return total / count if count else None


def acted(
    policy: RolloutPolicy, raw: dict[str, Any], frame_stack: int
) -> Iterator[tuple[int, NDArray[np.float64], Tensor]]:
    """Let a policy act in the windows of a raw batch as in deployment; its memory starts at the window's start.

    Yields:
        for each step with a complete stack of frames: its index in the window, actions (B, A), and (B,) bool, false
        where the step is padding.
    """
    goal = _arrays(raw["goal_obs"], policy.goal_keys) if policy.goal_keys else None
    mask, count = raw.get("pad_mask"), len(raw["actions"])
    seen = min(raw["obs"][key].shape[1] for key in policy.obs_keys)
    for t in range(seen):
        obs = _arrays({key: raw["obs"][key][:, t] for key in policy.obs_keys}, policy.obs_keys)
        action = policy(obs, goal, batched_ob=True)
        if t >= frame_stack - 1:
            real = torch.ones(count, dtype=torch.bool) if mask is None else mask[:, t].cpu()
            yield t, action, real


class Calibrator:
    """Measures the uncertainty of a policy in demonstrations, always in the same windows.

    Args:
        config: the run's configuration.
        samples: windows of demonstrations.
        held_out: true if the policy does not learn from them.
    """

    def __init__(self, config: Any, samples: Any, device: torch.device, held_out: bool) -> None:
        self._config, self._samples, self._device = config, samples, device
        self._held_out = held_out

    def run(self, algo: Algo) -> dict[str, Any]:
        """Return the part ``calibration`` of a checkpoint; the training's random numbers and mode are unchanged."""
        train, is_training = self._config.train, algo.nets.training
        most = min(MOST_STEPS, len(self._samples))
        size = min(train.batch_size, most)
        batches = ShuffledBatches(len(self._samples), size, train.seed)
        values: list[Tensor] = []
        with preserved_rng():
            torch.manual_seed(train.seed)
            loader = make_loader(self._samples, batches, 0, self._device)
            for raw in islice(loader, -(-most // size)):
                policy = RolloutPolicy(algo)
                for _, _, real in acted(policy, raw, train.frame_stack):
                    values.append(policy.last_extras["uncertainty"].cpu()[real])
        if is_training:
            algo.set_train()
        return Calibration.of(torch.cat(values)[:MOST_STEPS].numpy(), self._held_out).to_dict()


def calibrator_of(setup: Setup) -> Calibrator | None:
    """Return the calibrator of a run, on held-out demonstrations or, without any, on training demonstrations.

    None if the policy has no uncertainty, or learns without demonstrations or from a stream of them.
    """
    samples = setup.valid_set or setup.train_set
    if not setup.algo.gives_uncertainty or not isinstance(samples, SequenceDataset):
        return None
    return Calibrator(setup.config, samples, setup.device, held_out=bool(setup.valid_set))


def _arrays(obs: dict[str, Tensor], keys: Sequence[str]) -> dict[str, Any]:
    return {key: obs[key].cpu().numpy() for key in keys}
