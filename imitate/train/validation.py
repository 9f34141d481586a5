"""Validation: loss and action error on held-out demos."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.data import ShuffledBatches
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.seeding import preserved_rng
from imitate.train.batch_source import make_loader
from imitate.train.metrics import EpochMeans


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
            # The same seed gives the same random crops and latents at every validation.
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

    The policy acts as in deployment; its memory starts at the window's start. Returns None if there is no policy, or if
    its actions are converted at run time and so differ from the recorded ones.
    """
    actions: Tensor = raw["actions"]
    if not algo.algo_config.acts or actions.shape[-1] != algo.preprocess.actions.sent_dim:
        return None
    policy = RolloutPolicy(algo)
    goal = _arrays(raw["goal_obs"], policy.goal_keys) if policy.goal_keys else None
    mask = raw.get("pad_mask")
    total = count = 0.0
    seen = min(raw["obs"][key].shape[1] for key in policy.obs_keys)
    for t in range(seen):
        obs = _arrays({key: raw["obs"][key][:, t] for key in policy.obs_keys}, policy.obs_keys)
        predicted = torch.from_numpy(policy(obs, goal, batched_ob=True))
        if t < frame_stack - 1:
            continue
        real = torch.ones(len(actions), dtype=torch.bool) if mask is None else mask[:, t].cpu()
        difference = (predicted - actions[:, t].cpu()).abs().mean(-1)[real]
        total += float(difference.sum())
        count += float(difference.numel())
    return total / count if count else None


def _arrays(obs: dict[str, Tensor], keys: Sequence[str]) -> dict[str, Any]:
    return {key: obs[key].cpu().numpy() for key in keys}
