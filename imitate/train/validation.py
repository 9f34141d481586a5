"""Validation: loss and action error on held-out demos, and the calibration of the policy's uncertainty there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.data import SequenceDataset, ShuffledBatches
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.policy.uncertainty import MOST_STEPS, Calibration
from imitate.system.seeding import preserved_rng
from imitate.train.batch_source import make_loader
from imitate.train.metrics import EpochMeans
from imitate.train.setup import Setup


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
        step of the window, actions (B, A), and (B,) bool, true where the step is real, for each step with a whole stack
        of frames.
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
    """Return the calibrator of a run: on held-out demonstrations, else on those of the training.

    None if the policy has no uncertainty, or learns without demonstrations or from a stream of them.
    """
    samples = setup.valid_set or setup.train_set
    if not setup.algo.gives_uncertainty or not isinstance(samples, SequenceDataset):
        return None
    return Calibrator(setup.config, samples, setup.device, held_out=bool(setup.valid_set))


def _arrays(obs: dict[str, Tensor], keys: Sequence[str]) -> dict[str, Any]:
    return {key: obs[key].cpu().numpy() for key in keys}
