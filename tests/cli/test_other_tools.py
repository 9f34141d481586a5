"""Options of other toolkits and misspelt ones: what to type here exists, and all mistakes of a line come together."""

import re
from pathlib import Path

import pytest
import typer

from imitate.cli.main import app
from imitate.cli.mistakes import ROWS, TOOLS, page_table
from imitate.cli.options import as_lists
from imitate.config.algorithms import available
from imitate.config.config import keys_of
from tests.cli.test_help import commands
from tests.loading import load
from tests.tiny import tiny_run

PAGES = Path(__file__).parents[2] / "docs"
LINES = """
train --config bc/bc --debug | --debug: train has no such option; in place of robomimic's write --epochs 2 \
--set experiment.epoch_every_n_steps=3 --set experiment.rollout.n=2 --set experiment.rollout.horizon=10
train --seed 3 | write --set train.seed=3
sweep bc/bc --seed=3 | write --set train.seed=3
train --algo bc | write --config bc/bc
eval --agent a --n_rollouts 2 | in place of robomimic's write --episodes 2
eval --agent a --n-eval-episodes 2 | in place of Stable-Baselines3's write --episodes 2
sweep bc/bc --seeds 3 | in place of Stable-Baselines3's write --grid train.seed=[1,2,3]
train --algo sac | write --config sac/sac_pendulum
eval --agent a --video_skip 2 | it is --video-skip
train --policy.path=F | in place of LeRobot's write --init F
train --policy.type=act | in place of LeRobot's write `imitate config init --algo act`
train --dataset.repo_id F --steps 9 | write --dataset F | write --epochs 1 --set experiment.epoch_every_n_steps=9
train --total-timesteps 50000 | write --epochs 50 --set experiment.epoch_every_n_steps=1000
eval --policy.path=F --env.type g | write --agent F | write --env g
dataset playback f --video_path v | write --video v
train --config sac/sac_pendulum --lr 1 | critic.learning_rate.initial=1 or --set algo.optim_params.temperature.
train --config ppo/ppo_cartpole --learning-rate 1 | --set algo.optim_params.policy.learning_rate.initial=1
train --train.num-epochs | --set train.num_epochs=VALUE
train --epoch 3 | did you mean --epochs?
train --nonsense | `imitate train --help` lists its options
collect --env Lift --num 0 --bad | `imitate collect --help` lists | Missing option '--out'. | value for '--num'
dataset playback --dataset f --video v | write `imitate dataset playback f`
eval --dataset f --agent a | eval has no such option; did you mean --data?
dataset render f --out g --cameras a b | f: there is no such file
dataset render f --out g --cameras a b --size 84 96 | --size: takes one word, got 84 96
train --config bc/bc --set train.sed=1 train.seed=2 c=3 | unknown key, did you mean 'seed' | c=3
eval --agent a --deterministic | policies act without sampling: leave it out
report runs | it is 'imitate dataset report'
enjoy runs/a | write `imitate eval --agent runs/a`
resume | write `imitate train --resume RUN`
info a b | info: takes no further words, got 'b'; `imitate info --help` shows what it takes
dataset rendr | there is no command 'dataset rendr'; did you mean 'render'?
dataset --out f | name one of its commands: split
--nonsense | No such option: --nonsense
"""
"""command line | part of a line of the answer | ..."""


@pytest.mark.parametrize("row", LINES.strip().splitlines(), ids=lambda row: row.partition(" | ")[0])
def test_each_mistake_of_a_command_line_is_a_line_with_the_remedy(call, row):
    line, *wanted = row.split(" | ")
    given = call(line, code=2).stderr.splitlines()
    assert len(given) == len(wanted), given
    for got, words in zip(given, wanted, strict=True):
        assert got.startswith("error: ") and words in got, got


def options_of(words):
    top = typer.main.get_command(app)
    command = top.get_command(None, words[0]).load()
    for name in words[1:]:
        command = command.commands[name]
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


def test_what_replaces_an_option_of_another_toolkit_exists():
    names, keys = [*commands()], {key for name in available() for key in keys_of(name)}
    for row in ROWS:
        assert row.tool in TOOLS and tuple(row.command.split()) in names, row
        assert row.options <= options_of(row.command.split()), row
        assert not {*row.flags} & options_of(row.command.split()), f"{row}: is an option here too"
        for key in re.findall(r"--(?:set|grid) ([a-z][\w.]+)=", row.example):
            assert key in keys, row


LISTS = """
dataset render | f --cameras a b c -o g | f --cameras a,b,c -o g
dataset render | --cameras=a b f --out g | --cameras=a,b f --out g
dataset render | --cameras a f --out g | --cameras a f --out g
dataset render | f --cameras a --bad b --out g | f --cameras a --bad b --out g
dataset split | --text x --ratio 0.1 f | --text x --ratio 0.1 f
train | --set a=1 b=2 RUN --resume | --set a=1 --set b=2 RUN --resume
train | --config c d | --config c d
eval | --agent a b --trust m n | --agent a b --trust m n
collect | --signals a b --env E | --signals a --signals b --env E
check-algo | sac --set a=-1 b=2 -- x | sac --set a=-1 --set b=2 -- x
"""
"""command | words | the words as the parser gets them"""


@pytest.mark.parametrize("row", LISTS.strip().splitlines())
def test_a_list_may_be_typed_as_several_words(row):
    name, typed, wanted = row.split(" | ")
    top = typer.main.get_command(app)
    found = top.get_command(None, name.split()[0]).load()
    for below in name.split()[1:]:
        found = found.commands[below]
    assert as_lists(found, typed.split()) == wanted.split()


def test_the_report_of_a_run_is_named(call, tmp_path):
    run = tiny_run(tmp_path)
    for path in (run, run.parent):
        words = f"write `imitate info {path}` or `imitate plot {path}` or `imitate diagnose {path}`"
        assert words in call("report", path, code=2).stderr
        assert f"with `imitate info {path}`" in call("dataset", "report", path, code=2).stderr


@pytest.mark.parametrize("tool", TOOLS)
def test_the_page_of_a_toolkit_shows_its_rows(monkeypatch, tool):
    monkeypatch.syspath_prepend(PAGES.parent / "scripts")
    own = PAGES / f"from_{tool}.md"
    text = (own if own.is_file() else PAGES / "from_other_rl.md").read_text()
    assert text.count(f"<!-- options of {tool} -->") == 1
    assert "| `--seed`" in page_table("sb3") and page_table(tool).count("\n") == 1 + sum(
        row.tool == tool for row in ROWS
    )
    hooks = load("scripts/site_hooks.py")
    page = type("Page", (), {"file": type("File", (), {"src_path": "a.md"}), "meta": {}})
    assert page_table(tool) in hooks.on_page_markdown(text, page)
