"""Describe all mistakes in a command line, one per line: unknown options, missing and wrong values."""

import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from tempfile import gettempdir
from typing import Any

import typer

from imitate.cli.options import as_lists
from imitate.errors import ConfigError, nearest
from imitate.system.recognition import recognise

UsageError: Any = typer.BadParameter.__mro__[1]
"""click's base class of the errors that its parser raises."""
_OF_FILES = ("--agent", "--checkpoint", "--config", "--dataset", "--file", "--input", "--path")
"""Options with which other toolkits name a file that is a positional argument here."""
_VALUES = ("arg", "args", "kwargs", "opt", "opts", "option", "options")
"""Last words of options that give keyword arguments, such as ``--robot-arg``."""
PROGRAMS = "imitate-program-"
"""Prefix of the temporary folder for the checkpoints of programs such as `imitate eval --agent scripted`."""
_NEAR = 0.75
"""Smallest similarity, from 0 to 1, at which an unknown name counts as a misspelt option."""


@dataclass
class _Words:
    """Words of a command line, sorted into known and unknown options."""

    known: list[str] = field(default_factory=list)
    unknown: list[tuple[str, str | None]] = field(default_factory=list)
    swallowed: bool = False


def mistakes(error: Any, args: Sequence[str]) -> list[str]:
    """Return a line for each mistake of a command line.

    Args:
        error: the first mistake, which the parser has found.
        args: the whole command line, without ``imitate``.
    """
    context = error.ctx
    if context is None or context.parent is None:
        return [_plain(error)]
    path = _path(context)
    if hasattr(context.command, "commands"):
        every = context.parent.command.list_commands(context.parent)
        return [_of_group(context.command.commands, path, list(args)[_length(context) :], every)]
    words = _sorted(context.command, as_lists(context.command, args[_length(context) :]))
    lines = [
        f"{name}: {path} has no such option; {_instead(name, value, path, context.command, args)}"
        for name, value in words.unknown
    ]
    return [*lines, *_of_values(context, words, lines)] or [_plain(error)]


def as_typed(line: str, args: Sequence[str]) -> str:
    """Return a message in which paths are written as they were typed: relative, unless this folder was typed."""
    line = with_programs(line)
    here = os.getcwd()
    if len(here) > 1 and not any(here in arg for arg in args):
        line = line.replace(f"{here}{os.sep}", "")
    for word in (part for arg in args for part in (arg, arg.partition("=")[2])):
        if word and "/" not in word[:1] and not word.startswith("-"):
            line = line.replace(os.path.abspath(word), word)
    return line


def with_programs(line: str) -> str:
    """Return a message in which the temporary checkpoint of a program, such as ``random``, is the program's name."""
    folder = re.escape(os.path.join(gettempdir(), PROGRAMS))
    return re.sub(rf"{folder}[^\s/]*/(\S+?)\.pth", r"\1", line)


def of_another_name(args: Sequence[str]) -> str:
    """Return advice for a command name that users of other toolkits may type, such as ``enjoy``; otherwise ''."""
    word, path = args[0], next((one for one in args[1:] if not one.startswith("-")), "")
    found = recognise(path) if path else None
    if word == "report" and (found is None or found.kind != "run"):
        return ""
    run = path or "RUN"
    texts = [line.partition(" | ") for line in _COMMANDS.strip().splitlines()]
    for names, _, commands in texts:
        if word in names.split():
            shown = " or ".join(f"`imitate {one.strip()}`" for one in commands.split(","))
            return f"write {shown.replace('RUN', run)}"
    return ""


def _of_group(
    commands: Collection[str], path: str, words: list[str], every: Collection[str]
) -> str:
    """Describe a command name that does not exist in a group of commands; ``every`` are the commands of imitate."""
    given = words[0] if words else ""
    if given.startswith("-"):
        return (
            f"{given}: {path} has no such option; name one of its commands: {', '.join(commands)}"
        )
    known = f"write `imitate {shlex.join(words)}`" if given in every else nearest(given, commands)
    return f"there is no command '{path} {given}'; {known}"


def _path(context: Any) -> str:
    """Return a command's name, preceded by the name of its group, such as 'dataset render'."""
    names = []
    while context.parent is not None:
        names.append(str(context.info_name))
        context = context.parent
    return " ".join(reversed(names))


def _length(context: Any) -> int:
    return len(_path(context).split())


def _options(command: Any) -> dict[str, Any]:
    """Return the options of a command under each of their names."""
    found = [one for one in command.params if one.param_type_name == "option"]
    names = {name: one for one in found for name in (*one.opts, *one.secondary_opts)}
    return {**names, "--help": None, "-h": None}


def _takes_value(option: Any) -> bool:
    return option is not None and not option.is_flag


def _sorted(command: Any, args: list[str]) -> _Words:
    options, words = _options(command), _Words()
    while args:
        word = args.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            words.known += [word, *args]
            break
        if not word.startswith("-") or word[1:2].isdigit() or len(word) < 2:
            words.known.append(word)
        elif name in options or (not word.startswith("--") and word[:2] in options):
            words.known.append(word)
            if name in options and _takes_value(options[name]) and not equals and args:
                words.known.append(args.pop(0))
        elif equals or not args or args[0].startswith("-"):
            words.unknown.append((name, value if equals else None))
        else:
            words.swallowed = True
            words.unknown.append((name, args.pop(0)))
    return words


def _instead(name: str, value: str | None, path: str, command: Any, args: Sequence[str]) -> str:
    """Return advice on what to type in place of an unknown option."""
    from imitate.config.loading import ready_for

    options = _options(command)
    spelt = name.replace("_", "-").lower()
    if spelt in options:
        return f"it is {spelt}"
    named = ready_for(value) if spelt == "--algo" and "--config" in options else ""
    known = f"write --config {named}" if named else in_other_tools(name, path, options, value)
    keys = _keys(name.lstrip("-").replace("-", "_"), args) if "--set" in options else []
    if keys and (not known or "--set algo." in known):
        shown = "VALUE" if value is None else value
        return f"the configuration has it: {' or '.join(f'--set {key}={shown}' for key in keys)}"
    if known:
        return known
    takes_file = any(one.param_type_name == "argument" and one.required for one in command.params)
    if spelt in _OF_FILES and value is not None and takes_file:
        return f"write `imitate {path} {value}`"
    stem, _, last = spelt.rpartition("-")
    alike = [f"{stem}-{word}" for word in _VALUES if last in _VALUES]
    near = [one for one in alike if one in options]
    near = near or get_close_matches(name, options, n=1, cutoff=_NEAR)
    if near:
        return f"did you mean {near[0]}?"
    return f"`imitate {path} --help` lists its options"


def _keys(word: str, args: Sequence[str]) -> list[str]:
    """Return the configuration keys that equal a word or end with it; [] if too many match."""
    from imitate.config.config import keys_of
    from imitate.config.key_hints import keys_that_mean
    from imitate.config.loading import read_tree

    algo_name = None
    for before, text in zip(args, args[1:], strict=False):
        if before in ("--config", "-c", "sweep", "check-algo"):
            with suppress(ConfigError):
                algo_name = read_tree(text, quiet=True).get("algo_name")
    return keys_that_mean(word, keys_of(algo_name))


def _of_values(context: Any, words: _Words, remedies: Sequence[str]) -> Iterator[str]:
    """Describe missing values, wrong values and extra words.

    A missing option is not reported if one of the ``remedies`` already adds it.
    """
    command = context.command
    tried = type(context)(command, info_name=context.info_name, parent=context.parent)
    try:
        values, rest, _ = command.make_parser(tried).parse_args(args=list(words.known))
    except UsageError as error:
        yield _plain(error)
        return
    for parameter in command.get_params(tried):
        if parameter.is_eager:
            continue
        try:
            _, rest = parameter.handle_parse_result(tried, values, rest)
        except UsageError as error:
            # The value of an unknown option may be the argument that seems to be missing.
            added = words.swallowed
            if parameter.param_type_name != "argument":
                added = any(
                    f"write {name} " in line for line in remedies for name in parameter.opts
                )
            if not (added and type(error).__name__ == "MissingParameter"):
                yield _plain(error)
    if rest and not remedies:
        yield _too_many([str(word) for word in rest], words.known, command, _path(context))


def _too_many(rest: list[str], known: list[str], command: Any, path: str) -> str:
    """Describe words that are neither an option nor an argument."""
    options = _options(command)
    at = known.index(rest[0])
    before = [place for place in range(at) if known[place] in options]
    name = known[before[-1]] if before else "--"
    option: Any = options.get(name)
    if _takes_value(option) and at - before[-1] == 2:
        return f"{name}: takes one word, got {' '.join((known[at - 1], *rest))}"
    given = ", ".join(f"'{word}'" for word in rest)
    return (
        f"{path}: takes no further words, got {given}; `imitate {path} --help` shows what it takes"
    )


def _plain(error: Any) -> str:
    return " ".join(str(error.format_message()).split())


_COMMANDS = """
report results show status summary | info RUN, plot RUN, diagnose RUN
enjoy play rollout test validate | eval --agent RUN
resume continue | train --resume RUN
teleoperate teleop | record
visualize visualise viz | dataset report, dataset playback
learn fit | train
"""
"""command names that users of other toolkits type | commands to use instead"""
_TABLE = """
robomimic | --algo | train | --config {bc}/bc
robomimic | --camera_height --camera_width --height --width | dataset render | --size {84}
robomimic | --camera_names --render_image_names | dataset render | --cameras {agentview}
robomimic | --camera_names --render_image_names | dataset playback | --camera {agentview}
robomimic | --debug | train | --epochs 2 --set experiment.epoch_every_n_steps=3 \
--set experiment.rollout.n=2 --set experiment.rollout.horizon=10
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
sb3 | --deterministic --no-deterministic | eval | = policies act without sampling: leave it out
sb3 | --stochastic | eval | = policies act without sampling; --epsilon 0.1 adds random actions
sb3 | --load-best | eval | = the best checkpoint of a run is taken: leave it out
sb3 | --no-render | eval | = nothing is shown: leave it out
sb3 | --progress | train | = progress is printed: leave it out
sb3 | --n-timesteps | eval | --episodes 50
sb3 | --vec-env | train | --set train.online.num_workers=4
sb3 | --gym-packages | train | --env my_package:MyEnv-v0
sb3 | --batch-size | train | --set train.batch_size={256}
sb3 | --buffer-size | train | --set train.online.buffer_size={1000000}
sb3 | --capture-video | train | --set experiment.render_video=true
sb3 | --cuda | train | --device cuda
sb3 | --env-id | train | --env {Pendulum-v1}
sb3 | --eval-freq | train | --set experiment.rollout.rate=1
sb3 | --eval-episodes --n-eval-episodes | train | --set experiment.rollout.n={20}
sb3 | --eval-episodes --n-eval-episodes | eval | --episodes {20}
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
sb3 | --seeds --num-seeds | sweep | --grid train.seed=[1,2,3]
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
"""toolkit | its options | command of imitate | options of that command, with an example value in braces, or = advice.

Two values in braces are a number of epochs and the steps per epoch; their product is the other toolkit's value.
"""

TOOLS = {
    "robomimic": "robomimic",
    "lerobot": "LeRobot",
    "sb3": "Stable-Baselines3",
    "d3rlpy": "d3rlpy",
    "alf": "ALF",
    "ding": "DI-engine",
}
"""Names of the toolkits; the keys are the ends of their pages' names, such as ``docs/from_sb3.md``."""


@dataclass(frozen=True)
class Row:
    """Options of another toolkit, and the words that replace them.

    Attributes:
        tool: the toolkit, a key of `TOOLS`.
        flags: options of the toolkit that have the same meaning.
        command: the command of imitate that replaces them.
        words: options of that command, with an example value in braces; if they begin with ``=``, advice.
    """

    tool: str
    flags: tuple[str, ...]
    command: str
    words: str

    @property
    def options(self) -> set[str]:
        """Options of this package's command that replace the other tool's."""
        return {word for word in self.words.split() if word.startswith("--")}

    @property
    def example(self) -> str:
        """The command line with the example values, or the advice, as shown on the toolkit's page."""
        return self.advice or f"`imitate {self.command} {self.with_value(None)}`"

    @property
    def advice(self) -> str:
        """The advice, if no option of imitate replaces the toolkit's options; otherwise ''."""
        return self.words.removeprefix("= ") if self.words.startswith("=") else ""

    def with_value(self, value: str | None) -> str:
        """Return the options with the given value in place of the example value."""
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
    """Return the options of a toolkit and their replacements as a Markdown table for its page."""
    head = [f"| {TOOLS[tool]} | imitate |", "|---|---|"]
    rows = [row for row in ROWS if row.tool == tool]
    return "\n".join(
        head
        + [f"| {' '.join(f'`{flag}`' for flag in row.flags)} | {row.example} |" for row in rows]
    )


def in_other_tools(
    flag: str, command: str, offered: Collection[str], value: str | None = None
) -> str:
    """Return what to type in place of another toolkit's option; '' if no known toolkit has it.

    Args:
        flag: the option, such as ``--n_rollouts``.
        command: the command in which it was given, such as ``eval``; its rows are searched before all others.
        offered: the options of that command.
        value: the value that was given with it.
    """
    wanted = flag.replace("_", "-")
    rows = [row for row in ROWS if wanted in {one.replace("_", "-") for one in row.flags}]
    own = [row for row in rows if row.command == command]
    own = own or [row for row in rows if row.options and row.options <= set(offered)]
    advice = [row.advice for row in own or rows if row.advice]
    if advice:
        return advice[0]
    texts = [row.with_value(value) for row in own] or [
        f"`imitate {row.command} {row.with_value(value)}`" for row in rows
    ]
    if not texts:
        return ""
    tools = {TOOLS[row.tool] for row in own or rows}
    place = f"in place of {tools.pop()}'s " if len(tools) == 1 else ""
    return f"{place}write {' or '.join(dict.fromkeys(texts))}"
