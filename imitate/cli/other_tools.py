"""Options of other toolkits' commands, and what to type here.

The message about an unknown option prints a row, and the pages docs/from_*.md show the rows of their toolkit.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_TABLE = """
robomimic | --algo | train | --config {bc}/bc
robomimic | --camera_height --camera_width --height --width | dataset render | --size {84}
robomimic | --camera_names --render_image_names | dataset render | --cameras {agentview}
robomimic | --camera_names --render_image_names | dataset playback | --camera {agentview}
robomimic | --debug | train | --epochs 1 --set experiment.epoch_every_n_steps=3
robomimic | --download_dir | dataset download | --out {datasets}
robomimic | --exclude-next-obs | dataset render | --no-next-obs
robomimic | --n | dataset playback | --first {5}
robomimic | --n | dataset render | --first {5}
robomimic | --n_rollouts | eval | --episodes {50}
robomimic | --num_demos | dataset subset | --first {50}
robomimic | --output_name | dataset render | --out {images.hdf5}
robomimic | --use-actions | dataset playback | --by actions
robomimic | --use-obs | dataset playback | --by obs-images
robomimic | --video_path | eval | --video {episodes.mp4}
lerobot | --actions_per_chunk | run | --async
lerobot | --batch_size | train | --set train.batch_size={8}
lerobot | --config_path | train | --config {my.json}
lerobot | --dataset.episode | replay | --demo demo_{0}
lerobot | --dataset.fps --fps | run | --rate-hz {30}
lerobot | --dataset.num_episodes | record | --episodes {50}
lerobot | --dataset.repo_id --dataset.root | train | --dataset {FOLDER}
lerobot | --dataset.reset_time_s | record | --pause-s {10}
lerobot | --dataset.single_task --task | record | --lang {TEXT}
lerobot | --env.task --env.type | eval | --env {NAME}
lerobot | --eval.batch_size | eval | --workers {4}
lerobot | --eval.n_episodes | eval | --episodes {10}
lerobot | --eval_freq | train | --set experiment.rollout.rate=1
lerobot | --job_name | train | --name {NAME}
lerobot | --num_workers | train | --set train.num_data_workers={4}
lerobot | --policy.chunk_size | train | --set algo.chunk.size={100}
lerobot | --policy.device | train | --device {cuda}
lerobot | --policy.n_action_steps | train | --set algo.chunk.execute={100}
lerobot | --policy.optimizer_lr | train | --set algo.optim_params.policy.learning_rate.initial={1e-5}
lerobot | --policy.path | train | --init {FOLDER}
lerobot | --policy.path | eval | --agent {FOLDER}
lerobot | --policy.type --policy | config init | --algo {act}
lerobot | --robot.id --robot.port | run | --robot-arg port={/dev/ttyACM0}
lerobot | --robot.type | run | --robot lerobot:{so101_follower}
lerobot | --save_freq | train | --set experiment.save.every_n_epochs=1
lerobot | --seed | train | --set train.seed={1000}
lerobot | --server_address | run | ws://{HOST:8000}
lerobot | --steps | train | --epochs {100} --set experiment.epoch_every_n_steps={1000}
lerobot | --teleop.port | record | --teleop-arg port={/dev/ttyACM1}
lerobot | --teleop.type | record | --teleop lerobot:{so101_leader}
lerobot | --wandb.enable | train | --set experiment.logging.log_wandb=true
sb3 | --algo | train | --config sac/sac_pendulum
sb3 | --batch-size | train | --set train.batch_size={256}
sb3 | --buffer-size | train | --set train.online.buffer_size={1000000}
sb3 | --capture-video | train | --set experiment.render_video=true
sb3 | --cuda | train | --device cuda
sb3 | --env-id | train | --env {Pendulum-v1}
sb3 | --eval-freq | train | --set experiment.rollout.rate=1
sb3 | --eval-episodes --n-eval-episodes | train | --set experiment.rollout.n={20}
sb3 | --exp-name | train | --name {NAME}
sb3 | --gamma | train | --set algo.discount={0.99}
sb3 | --hyperparams | train | --set KEY=VALUE
sb3 | --learning-rate | train | --set algo.optim_params.actor.learning_rate.initial={3e-4}
sb3 | --learning-starts | train | --set train.online.warmup_steps={1000}
sb3 | --log-folder | train | --output-dir {runs}
sb3 | --num-envs | train | --set train.online.num_envs={4}
sb3 | --num-steps | train | --set train.online.collect_steps={128}
sb3 | --optimize-hyperparameters --n-trials | sweep | --grid algo.discount=[0.98,0.99]
sb3 | --save-freq | train | --set experiment.save.every_n_epochs=1
sb3 | --seed | train | --set train.seed={1}
sb3 | --tau | train | --set algo.target_tau={0.005}
sb3 | --tensorboard-log | train | --set experiment.logging.log_tb=true
sb3 | --total-timesteps --n-timesteps | train | --epochs {20} --set experiment.epoch_every_n_steps={1000}
sb3 | --track | train | --set experiment.logging.log_wandb=true
sb3 | --trained-agent | train | --init {RUN}
d3rlpy | --env-id | eval | --env {Hopper-v5}
d3rlpy | --gpu | train | --device cuda
d3rlpy | --n-episodes | eval | --episodes {10}
d3rlpy | --n_steps | train | --epochs {100} --set experiment.epoch_every_n_steps={1000}
d3rlpy | --n_steps_per_epoch | train | --set experiment.epoch_every_n_steps={1000}
d3rlpy | --seed | train | --set train.seed={1}
alf | --conf | train | --config {sac/sac_pendulum}
alf | --conf_param | train | --set {algo.discount=0.98}
alf | --distributed | train | --on ray
alf | --num_episodes | eval | --episodes {10}
alf | --parallel_play | eval | --workers {4}
alf | --random_seed | eval | --seed {0}
alf | --record_file | eval | --video {episodes.mp4}
alf | --root_dir | train | --output-dir {runs}
ding | --env-step --train-iter | train | --epochs {20} --set experiment.epoch_every_n_steps={1000}
ding | --exp-name | train | --name {NAME}
ding | --load-path | train | --init {RUN}
ding | --platform | train | --on ray
ding | --replay-path | eval | --video {episodes.mp4}
ding | --seed | train | --set train.seed={0}
"""
"""toolkit | its options | command here | words of that command, with the example of a value in braces.

Two values in braces are epochs and their steps, whose product is the value.
"""

TOOLS = {
    "robomimic": "robomimic",
    "lerobot": "LeRobot",
    "sb3": "Stable-Baselines3",
    "d3rlpy": "d3rlpy",
    "alf": "ALF",
    "ding": "DI-engine",
}
"""Toolkits by the end of the name of their page."""


@dataclass(frozen=True)
class Row:
    """Options of another toolkit, and the words that replace them.

    Attributes:
        tool: the toolkit, a key of `TOOLS`.
        flags: its options with one meaning.
        command: the command here.
        words: the words of that command, with the example of a value in braces.
    """

    tool: str
    flags: tuple[str, ...]
    command: str
    words: str

    @property
    def options(self) -> set[str]:
        """The options of the command here that replace them."""
        return {word for word in self.words.split() if word.startswith("--")}

    @property
    def example(self) -> str:
        """The command with the words, as the pages show them."""
        return f"imitate {self.command} {self.with_value(None)}"

    def with_value(self, value: str | None) -> str:
        """Return the words with the given value in place of the example."""
        template = re.sub(r"\{(.*?)\}", "{}", self.words)
        values = re.findall(r"\{(.*?)\}", self.words)
        if value and len(values) == 1:
            values = [value]
        elif value and value.isdigit() and values:
            epochs = max(1, round(int(value) / int(values[1])))
            values = [str(epochs), str(-(-int(value) // epochs))]
        return template.format(*values)


def _row(line: str) -> Row:
    tool, flags, command, words = line.split(" | ")
    return Row(tool, tuple(flags.split()), command, words)


ROWS = tuple(_row(line) for line in _TABLE.strip().splitlines())


def page_table(tool: str) -> str:
    """Return the rows of a toolkit as a table for its page."""
    head = [f"| {TOOLS[tool]} | imitate |", "|---|---|"]
    rows = [row for row in ROWS if row.tool == tool]
    return "\n".join(
        head
        + [f"| {' '.join(f'`{flag}`' for flag in row.flags)} | `{row.example}` |" for row in rows]
    )


def in_other_tools(
    flag: str, command: str, offered: Collection[str], value: str | None = None
) -> str:
    """Return what to type in place of another toolkit's option; '' if none has it.

    Args:
        flag: the option, such as ``--n_rollouts``.
        command: the command in which it was given, such as ``eval``; rows for it come before those of others.
        offered: the options of that command.
        value: the value that was given with it.
    """
    wanted = flag.replace("_", "-")
    rows = [row for row in ROWS if wanted in {one.replace("_", "-") for one in row.flags}]
    own = [row for row in rows if row.command == command]
    own = own or [row for row in rows if row.options and row.options <= set(offered)]
    texts = [row.with_value(value) for row in own] or [
        f"`imitate {row.command} {row.with_value(value)}`" for row in rows
    ]
    if not texts:
        return ""
    tools = {TOOLS[row.tool] for row in own or rows}
    place = f"in place of {tools.pop()}'s " if len(tools) == 1 else ""
    return f"{place}write {' or '.join(dict.fromkeys(texts))}"
