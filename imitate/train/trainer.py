"""Function ``train``: it starts or resumes a run, trains, evaluates and reports."""

import errno
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import torch

from imitate.algo.base.algo import Algo
from imitate.algo.base.allocation import count_numbers
from imitate.algo.base.factory import variant_of
from imitate.config import Config, load_config
from imitate.config.readiness import trainable_template
from imitate.data.shards.data_files import DataFiles, data_files
from imitate.errors import ConfigError, TrainingError, UserError
from imitate.evaluate.environments import trials, trust_named, with_env
from imitate.system.processes import available_cores, caught_signals
from imitate.system.ranks import Ranks
from imitate.system.run_folder import (
    RunFolder,
    create_run_folder,
    newest_run_folder,
    open_run_folder,
    write_text,
)
from imitate.system.seeding import seed_everything, torch_threads
from imitate.train.console import Console
from imitate.train.devices import choose_device, device_in_use
from imitate.train.features import use_features
from imitate.train.metrics import import_wandb
from imitate.train.online.batches import batch_source
from imitate.train.online.setup import build_online
from imitate.train.ranks import GradientAverage, joined_ranks
from imitate.train.resume import check_same_data, last_state, restored, resumed_config, resuming
from imitate.train.run import Run
from imitate.train.setup import (
    Setup,
    build,
    load_overridden,
    package_versions,
    resolve,
    without_real_robots,
)
from imitate.train.start import start_words
from imitate.train.summary import (
    best_checkpoint,
    draw_curves,
    recommendation,
    summary_lines,
    write_results,
)
from imitate.train.training_data import choice_warnings


@dataclass(frozen=True)
class RunResult:
    """Result of a run.

    Attributes:
        run_dir: folder of the run.
        status: "finished", "stopped early: ...", "paused at epoch ..." or "interrupted".
        checkpoint: path of the best checkpoint, or of the last one if there is no best.
        exit_code: 0 if finished, 1 if an evaluation failed, 130 or 143 if interrupted.
        results: the content of results.json; empty on a rank that writes nothing.
        summary: lines of a readable table of the results.
    """

    run_dir: Path
    status: str
    exit_code: int
    checkpoint: Path | None
    results: dict[str, Any]
    summary: tuple[str, ...]


def train(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    dataset: str | Path | None = None,
    output_dir: str | Path | None = None,
    env: str | None = None,
    resume: str | Path | bool | None = None,
    overrides: Sequence[str] = (),
    until_epoch: int | None = None,
    quiet: bool = False,
    stream: TextIO | None = None,
) -> RunResult:
    """Train according to a configuration.

    Call it under `if __name__ == "__main__":`, because evaluation processes import the calling script.

    Args:
        config: a configuration, a path to one, or a dict; required unless `resume` is a run folder.
        dataset: demonstration file that replaces `train.data`.
        output_dir: folder that replaces `train.output_dir`.
        env: environment of the rollouts, see :func:`imitate.evaluate.environments.named_env`; it has precedence over
            ``experiment.env_meta_update_dict`` and over the data's own.
        resume: a run folder to resume; True resumes the newest run with this configuration's name.
        overrides: `"a.b=value"`; in a resumed run only those in `imitate.train.resume.CHANGEABLE`.
        until_epoch: evaluate this epoch and pause after it, if the run has more epochs; a resumed run continues as if
            it had not paused.
        quiet: print errors only.
        stream: output stream for the progress; stderr by default.

    Raises:
        UserError: the input is invalid; the message names the invalid part.
        TrainingError: training failed.
    """
    if resume and env is not None:
        raise ConfigError("a resumed run keeps its environment: omit --env")
    folder, config = _folder_and_config(config, dataset, output_dir, resume, overrides)
    with ExitStack() as stack:
        files = stack.enter_context(data_files(config))
        config = config if folder else _resolved(config, dataset, output_dir, env, files)
        _check_pause(config, until_epoch)
        if config.experiment.logging.log_wandb:
            import_wandb()
        device, device_words = choose_device(config.train)
        interrupt = stack.enter_context(caught_signals())
        ranks = stack.enter_context(joined_ranks(device.type == "cuda"))
        device = _device_of_rank(device, ranks)
        stack.enter_context(device_in_use(device))
        seed_everything(config.train.seed)
        ckpt = None if folder is None else last_state(folder)
        make_setup = build_online if config.train.online.enabled else build
        stored = None if ckpt is None else count_numbers(ckpt["model"])
        setup = make_setup(config, device, resumed=ckpt is not None, stored=stored, files=files)
        setup, notes = without_real_robots(setup)
        _join(setup.algo, ranks)
        if ranks.rank > 0:
            setup, quiet = _without_output(setup), True
            folder = create_run_folder(stack.enter_context(TemporaryDirectory()), "rank")
        config = setup.config
        if folder is None:
            folder = create_run_folder(config.train.output_dir, config.experiment.name)
        stack.enter_context(folder.locked())
        folder.make_parts()
        folder.clear_leftovers()
        log = folder.log if config.experiment.logging.terminal_output_to_txt else None
        console = Console(stream, quiet=quiet, log=log)
        console.say(f"run: {folder.path}")
        console.say(device_words + (f", {ranks.world} processes" if ranks.world > 1 else ""))
        data = setup.training_data
        for line in (
            data.words,
            *choice_warnings(config, data),
            *setup.storage_words,
            *setup.language_words,
            *(start_words(config.experiment) if ckpt is None else ()),
            *notes,
        ):
            console.say(line)
        if config.experiment.render:
            console.say("experiment.render: no window is opened; watch the videos instead")
        if ckpt is not None:
            with restored(folder.last):
                check_same_data(
                    ckpt["provenance"]["datasets"], setup.provenance["datasets"], console.say
                )
                state = ckpt["train_state"]
                done = state["epoch"] >= (config.train.num_epochs or math.inf)
                more = f", its last: for more, add --epochs {2 * state['epoch']}" if done else ""
                console.say(f"resumed at epoch {state['epoch']}, step {state['step']}{more}")
        write_text(folder.config, config.to_json() + "\n")
        # Ranks other than 0 write no run, but each saves its replay buffer in the run folder of rank 0.
        shared = RunFolder(Path(ranks.gather(str(folder.path.resolve()))[0]))
        with _full_disk_reported(folder):
            source = batch_source(setup, folder if ranks.rank == 0 else shared, console, ranks)
            run = Run(setup, source, folder, console, interrupt, ckpt, ranks)
            run.until_epoch = until_epoch
            use_features(setup, files, console.say, lambda: interrupt.signal is not None)
            files.close()
            ranks.draw_apart(config.train.seed + run.state.step)
            stack.callback(run.close)
            threads = threads_of(config, device, run.rollouts.shared_workers)
            prepare = setup.algo.preprocess
            with torch_threads(threads), _failure_is_written(run):
                run.rollouts.try_environments(
                    trials(
                        {key: prepare.raw_shapes[key] for key in setup.algo.obs_shapes},
                        prepare.actions.sent_dim,
                        setup.env_metas,
                        serves_language=setup.language is not None,
                    ),
                    lambda: interrupt.signal is not None,
                )
                bf16 = ", precision bf16" if config.train.precision == "bf16" else ""
                console.say(f"torch threads: {torch.get_num_threads()}{bf16}")
                status = run.loop()
            console.close_bar()
            if status != "interrupted":
                run.wait_for_evaluations()
            if interrupt.signal is not None:
                status = "interrupted"
            return _finish(run, status)


def _check_pause(config: Config, until_epoch: int | None) -> None:
    """Refuse a pause if the run could not be resumed."""
    if until_epoch is not None and not config.experiment.save.enabled:
        raise ConfigError(
            "experiment.save.enabled is false, but a pause needs a checkpoint to resume "
            "from; omit --until-epoch"
        )


def _device_of_rank(device: torch.device, ranks: Ranks) -> torch.device:
    """Return the device of this rank: each process on a machine uses a GPU of its own."""
    if ranks.world == 1:
        return device
    if device.type == "mps":
        raise ConfigError(
            f"{ranks.world} processes cannot share a Mac's GPU: start one, or set train.device to cpu"
        )
    if device.type != "cuda":
        return device
    if ranks.local >= torch.cuda.device_count():
        raise ConfigError(
            f"{ranks.local + 1} processes need a GPU each, but torch sees {torch.cuda.device_count()}: "
            "start fewer with --nproc_per_node, or set train.device to cpu"
        )
    return torch.device("cuda", ranks.local)


def _join(algo: Algo, ranks: Ranks) -> None:
    """Copy the weights of the first rank to all others, and average gradients from now on."""
    if ranks.world == 1:
        return
    if algo.global_config.train.on_bad_loss == "rollback":
        raise ConfigError(
            "train.on_bad_loss is 'rollback', which several processes do not support: set it "
            "to 'stop'"
        )
    if algo.global_config.train.online.curriculum.stages:
        raise ConfigError(
            "train.online.curriculum: its stages depend on evaluations of the first process, which the others do not "
            "get: start one process, or omit the stages"
        )
    average = GradientAverage(ranks)
    algo.ranks = ranks
    for learner in algo.learners:
        learner.ranks = ranks
        ranks.share(learner.nets)
        if learner.ema is not None:
            ranks.share(learner.ema.module)
        learner.optimization.share_gradients = average
        learner.optimization.share_weights = ranks.share


def _without_output(setup: Setup) -> Setup:
    """Return the setup of a rank that only computes."""
    silent = {
        "experiment.rollout.enabled": False,
        "experiment.save.enabled": False,
        "experiment.logging.log_tb": False,
        "experiment.logging.debug": False,
        "experiment.logging.log_wandb": False,
    }
    return replace(setup, config=setup.config.with_overrides(silent), valid_set=None)


def _folder_and_config(
    config: Config | Mapping[str, Any] | str | Path | None,
    dataset: str | Path | None,
    output_dir: str | Path | None,
    resume: str | Path | bool | None,
    overrides: Sequence[str],
) -> tuple[RunFolder | None, Config]:
    """Return the run folder to resume and its configuration; for a new run None, and a configuration to resolve."""
    if not resume:
        if config is None:
            data = "DEMOS.hdf5" if dataset is None else str(dataset)
            raise ConfigError(
                f"a new run needs a configuration, given by --config: 'imitate config init {data} --out my.json' "
                "writes one for the demonstrations, and 'imitate config list' lists those of the package"
            )
        return None, load_overridden(config, overrides, dataset, output_dir)
    if resume is True:
        if config is None:
            raise ConfigError(
                "--resume without a run folder needs --config, which contains the run's name"
            )
        wanted, _ = trainable_template(load_config(config))
        parent = output_dir if output_dir is not None else wanted.train.output_dir
        folder = newest_run_folder(parent, wanted.experiment.name)
    else:
        folder = open_run_folder(resume)
    return folder, resumed_config(folder, overrides, dataset)


def _resolved(
    config: Config,
    dataset: str | Path | None,
    output_dir: str | Path | None,
    env: str | None,
    files: DataFiles,
) -> Config:
    """Return the resolved configuration of a new run, with ``--env`` applied."""
    config = resolve(config, dataset, output_dir, files)
    # The user named this configuration. That of a resumed run is a file in the run folder, and is not trusted.
    trust_named(config, env)
    return config if env is None else with_env(config, env, files)


def threads_of(config: Config, device: torch.device, shared_workers: int) -> int | None:
    """Return the number of torch threads: as configured, or the cores that evaluation workers leave free.

    None keeps torch's number, on a GPU or without such workers.
    """
    if config.train.num_threads is not None:
        return config.train.num_threads
    if device.type != "cpu" or shared_workers == 0:
        return None
    return min(torch.get_num_threads(), max(1, available_cores() - shared_workers))


@contextmanager
def _full_disk_reported(folder: RunFolder) -> Iterator[None]:
    """Context that converts an OSError about a full disk to a TrainingError with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise TrainingError(
            f"{error.filename or folder.path}: {error.strerror}; checkpoints already written are intact. "
            f"Make room, then: {resuming(folder)}"
        ) from error


@contextmanager
def _failure_is_written(run: Run) -> Iterator[None]:
    """Context that writes results.json and the plot if training fails, except onto a full disk."""
    try:
        yield
    except (TrainingError, UserError) as error:
        with suppress(OSError):
            _finish(run, f"failed: {error}")
        raise


def _finish(run: Run, status: str) -> RunResult:
    """Write results.json and the plot; return the result."""
    folder, failures = run.folder, run.rollouts.failures
    if run.ranks.rank > 0:
        return RunResult(folder.path, status, run.interrupt.exit_code, None, {}, ())
    checkpoint = best_checkpoint(folder)
    results = {
        "run": str(folder.path),
        "status": status,
        "algo": variant_of(run.algo),
        "algo_name": run.config.algo_name,
        **run.counts(),
        "train_loss": run.history.last_epoch.get("Train/Loss"),
        "valid_loss": run.history.last_epoch.get("Valid/Loss"),
        "final": run.rollout_entry(run.state.epoch),
        "best": None if run.history.best is None else run.rollout_entry(run.history.best[-1]),
        "seeds": {
            "train": run.config.train.seed,
            "rollout": run.config.experiment.rollout.seed,
        },
        "times": {
            "train_wall_s": round(run.state.wall_s, 3),
            "train_cpu_s": round(run.state.cpu_s, 3),
            "evaluation_wall_s": round(run.history.evaluation_s, 3),
        },
        "device": str(run.setup.device),
        "torch_threads": torch.get_num_threads(),
        "training_data": run.setup.training_data.to_dict(),
        "datasets": run.setup.provenance["datasets"],
        "packages": package_versions(),
        "checkpoint": None if checkpoint is None else str(checkpoint),
        **recommendation(folder, run.history, run.last_epoch),
        "evaluation_failures": failures,
    }
    write_results(folder, results)
    draw_curves(folder)
    lines = summary_lines(results, advise=not run.rollouts.horizon_noted)
    if status == "interrupted":
        lines.append(f"{run.interrupt.name}: to resume, {resuming(folder)}")
        if run.interrupt.name == "SIGHUP":  # the terminal is gone, so write the line into the log
            run.console.say(lines[-1])
    exit_code = run.interrupt.exit_code or (1 if failures else 0)
    return RunResult(folder.path, status, exit_code, checkpoint, results, tuple(lines))
