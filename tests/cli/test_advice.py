"""Messages advise only options that the command that prints them has."""

import ast
import re
from pathlib import Path

import numpy as np

from imitate.envs.spaces import no_observation
from imitate.errors import offered, offering
from tests.cli.test_help import commands
from tests.cli.test_other_tools import options_of

ROOT = Path(__file__).parents[2] / "imitate"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
FOREIGN = {"--address", "--head", "--local-dir", "--repo-type", "--nproc", "--strict"}
"""Options of Ray, the Hub's tool and torchrun."""
PRINTED_BY = """
checks/causes checks/diagnosis checks/ends checks/fitted | diagnose
checks/recording_causes checks/response checks/subject | diagnose
checks/ | check-algo
collect/action_file collect/actions | dataset actions
collect/collect collect/demonstrate | collect
collect/playback | dataset playback
collect/render | dataset render
collect/replay | dataset actions, dataset migrate-env
config/axes train/sweep/state train/sweep/sweep train/sweep/work | sweep
config/loading | train, sweep, dagger, check-algo, config show
config/data_paths config/ | train, sweep, dagger, check-algo
config/experiment crew/ray_cluster system/processes | train, sweep, eval, collect, dagger, dataset render
data/download/ | dataset download
data/edit/edits | dataset normalize-actions
data/edit/merge | dataset merge
data/edit/shard data/shards/ | dataset shard
data/edit/target | dataset split, dataset filter, dataset subset, dataset delete, dataset doctor, dataset set-env
data/file/journal | dataset split, dataset filter, dataset subset, dataset delete, dataset doctor, dataset set-env
data/formats/ | dataset convert
data/quality/report/ | dataset report
deploy/bundle/ | export
deploy/check/ | check-deploy
deploy/comparison/ | compare
deploy/robot/ | run, compare, record
deploy/server/client | run, compare, check-deploy
deploy/server/server | serve
envs/ | train, sweep, eval, dagger, check-algo
evaluate/environments train/observations train/metrics train/online/normalization | train, sweep, dagger, check-algo
evaluate/ | eval
interop/ | convert-checkpoint
policy/checks | eval, run, compare
policy/renaming | run, compare, check-deploy, eval
system/recognition | train, eval
system/run_folder | train, sweep
train/first_config | config init
train/fqe | eval
train/interactive/ | dagger
train/online/ | train
train/evaluations train/training_data | train, sweep
train/resume train/trainer system/ranks | train
train/setup | train, sweep
train/sweep/ | plot
cli/collect | collect
cli/dagger | dagger
cli/diagnose | diagnose
cli/export | export
cli/eval cli/eval_offline cli/eval_jobs | eval
cli/sweep | sweep
cli/train | train
cli/config | config init
cli/convert_checkpoint | convert-checkpoint
cli/help_texts cli/main cli/mistakes cli/options |
data/quality/doctor/ | dataset doctor
cli/dataset/curate | dataset filter
cli/dataset/dataset | dataset embed
cli/dataset/rewriting | dataset actions
cli/robot/policies | run, compare
cli/robot/robots | run, compare, record, replay
"""
"""modules, or folders | the commands that print their messages"""
EXCEPTIONS = {
    ("cli/dataset/curate", "--undo"): "normalize-actions",
    (
        "data/download/catalogue",
        "--dataset",
    ): "train, of a configuration whose public file is missing",
    ("cli/robot/policies", "--skill"): "run",
    ("cli/robot/policies", "--plan-budget-ms"): "run",
    ("data/edit/edits", "--env"): "set-env",
    ("data/edit/edits", "--type"): "set-env",
    ("data/quality/doctor/actions", "--set"): "for a configuration",
    ("data/quality/doctor/structure", "--video"): "imitate dataset playback",
    ("cli/dataset/curate", "--keys"): "imitate dataset stats has it",
    ("cli/dataset/rewriting", "--dry-run"): "migrate-env",
    ("data/quality/doctor/structure", "--min-length"): "imitate dataset filter",
    ("data/quality/doctor/structure", "--max-length"): "imitate dataset filter",
    ("envs/make", "--env"): "the commands that have it are in the message",
    ("system/run_folder", "--resume"): "train",
    ("train/training_data", "--filter-key"): "a part of the line of imitate dataset filter",
    ("data/formats/lerobot_video", "--video"): "a converter's",
}
"""Options that only some of a module's commands have, with the one that prints them."""


def test_the_tables_name_modules_that_exist():
    places = [*modules(), *(place for place, _ in EXCEPTIONS)]
    assert [p for p in places if not p.endswith("/") and not (ROOT / f"{p}.py").is_file()] == []


def modules():
    table = {}
    for line in PRINTED_BY.strip().splitlines():
        places, names = line.split(" |")
        table |= dict.fromkeys(places.split(), tuple(filter(None, names.strip().split(", "))))
    for folder, group in (("dataset", "dataset "), ("robot", "")):
        for path in (ROOT / "cli" / folder).glob("*.py"):
            name = f"{group}{path.stem.replace('_', '-')}"
            table.setdefault(f"cli/{folder}/{path.stem}", (name,) if name in COMMANDS else ())
    return table


def texts(path):
    """Texts in a module's code, whole f-strings, without docstrings."""
    tree = ast.parse(path.read_text())
    skipped = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            skipped |= {id(one.value) for one in body if isinstance(one, ast.Expr)}
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(one) for one in node.values}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(getattr(one, "value", "")) if isinstance(one, ast.Constant) else "{}"
                for one in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


COMMANDS = {" ".join(words): options_of(words) for words in commands()}


def names_its_command(text, option):
    """True if a text has, before an option, a command that has it, as in `imitate eval --horizon 5`."""
    before = text[: text.index(option)]
    found = re.findall(r"(?:`?imitate |`)((?:dataset |config )?[a-z-]+)[^;:`]*$", before)
    return any(option in COMMANDS.get(name, ()) for name in found)


def test_options_in_messages_exist_in_the_commands_that_print_them():
    """Options of a module without a row exist in some command."""
    table, wrong = modules(), []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).with_suffix("").as_posix()
        source = path.read_text()
        folders = (place for place in table if place.endswith("/") and name.startswith(place))
        printing = table.get(name if name in table else max(folders, key=len, default=""))
        for text in texts(path) if printing != () and OPTION.search(source) else ():
            for option in {*OPTION.findall(text)} - FOREIGN if " " in text else ():
                if (name, option) in EXCEPTIONS or names_its_command(text, option):
                    continue
                if f'offered("{option}")' in source:
                    continue
                lacking = [c for c in printing or COMMANDS if option not in COMMANDS[c]]
                if printing and lacking or len(lacking) == len(COMMANDS):
                    wrong.append(f"{name}: {', '.join(lacking[:3])}: no {option}: {text[:90]}")
    assert wrong == []


def test_an_environment_without_an_observation_is_answered_with_what_the_command_has():
    obs = {"boat": np.zeros(4), "view": np.zeros((8, 8, 3))}

    def told(*options):
        with offering(options):
            assert offered("--set") == ("--set" in options)
            return str(no_observation("sea", "flat", obs))

    assert told("--rename", "--set").endswith(
        "(if it has another name there, use --rename NEW=flat)"
    )
    taken = 'add --set \'observation.modalities.obs={"low_dim": ["boat"], "rgb": ["view"]}\''
    assert told("--set").endswith(f"; to take its own, {taken}")
    assert told() == "sea: the environment has no observation 'flat'; valid names: boat, view"
    assert offered("--anything")
