"""Logging of a run's numbers to `metrics.jsonl`, TensorBoard, Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from imitate.errors import ConfigError
from imitate.system.extras import install_command
from imitate.system.run_folder import RunFolder
from imitate.train.console import Console
from imitate.train.metrics import MetricsFile


class RunLogger:
    """Logger of records (tags such as `Train/Loss` to floats) to every destination in the configuration."""

    def __init__(self, folder: RunFolder, config: Any, console: Console, epoch: int = 0) -> None:
        self.metrics = MetricsFile(folder.metrics)
        self._console = console
        self._tensorboard: Any = None
        self._wandb: Any = None
        settings = config.experiment.logging
        if settings.log_tb:
            writer = import_module("torch.utils.tensorboard").SummaryWriter
            self._tensorboard = writer(
                str(folder.tensorboard), purge_step=epoch + 1 if epoch else None
            )
        if settings.log_wandb:
            self._wandb = import_wandb().init(
                project=settings.wandb_proj_name,
                name=config.experiment.name,
                id=f"{folder.path.parent.name}-{folder.path.name}",
                resume="allow",
                dir=str(folder.path),
                config=config.to_dict(),
            )

    def record(self, kind: str, epoch: int, step: int, numbers: Mapping[str, float]) -> None:
        """Log `numbers` of an epoch (`kind` "epoch") or of an evaluation ("rollout")."""
        self.metrics.append({"kind": kind, "epoch": epoch, "step": step, **numbers})
        if self._tensorboard is not None:
            for tag, value in numbers.items():
                self._tensorboard.add_scalar(tag, value, epoch)
            self._tensorboard.flush()
        if self._wandb is not None:
            try:
                # An evaluation in the background belongs to an earlier epoch, so no step is passed.
                self._wandb.log({**numbers, "epoch": epoch})
            except Exception as error:  # a lost connection must not end a training
                self._console.say(f"warning: Weights & Biases stopped taking numbers ({error})")
                self._wandb = None

    def close(self) -> None:
        """Flush and close."""
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def import_wandb() -> Any:
    """Import the wandb module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module("wandb")
    except ImportError:
        raise ConfigError(
            f"experiment.logging.log_wandb is true but wandb is not installed: {install_command('wandb')}, "
            "or --set experiment.logging.log_wandb=false"
        ) from None
