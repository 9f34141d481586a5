"""``imitate config``: write, show and check configurations, and write their JSON schema."""

import json
from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.help_texts import examples
from imitate.cli.options import NAMES, AsJson, Overwrite, SetKeys
from imitate.config.algorithms import available, find
from imitate.config.config import Config
from imitate.config.loading import load_config, names, read_tree
from imitate.config.readiness import check_trainable, trainable_template
from imitate.config.schema import explain as explained
from imitate.config.schema import lines, schema_text, table
from imitate.errors import ConfigError, nearest
from imitate.system.plain_files import write_text

app = typer.Typer(
    help="Write a configuration for a demonstration file; show, explain and check configurations.",
    no_args_is_help=True,
)


TOPIC_WIDTH = len("control rate")


@app.command("list", epilog=examples("imitate config list", "imitate config list lift --json"))
def list_(
    part: Annotated[
        str, typer.Argument(help="List only names that contain this text, such as lift.")
    ] = "",
    json_: AsJson = False,
) -> None:
    """List the configurations that come with the package."""
    chosen = [name for name in names() if part in name]
    if json_:
        typer.echo(json.dumps(chosen))
        return
    if not chosen:
        raise ConfigError(
            f"no bundled configuration has '{part}' in its name; {nearest(part, names())}"
        )
    typer.echo("\n".join(chosen))


@app.command(
    epilog=examples(
        "imitate config init own.hdf5 --out my.json",
        "imitate config init own.hdf5 --algo act --images front_image,wrist_image",
        "imitate config init own.hdf5 --images none --no-forecast > my.json",
        "imitate config init own.hdf5 --measure --out my.json",
    )
)
def init(
    file: Annotated[
        Path, typer.Argument(help="Demonstrations: an HDF5 file, or a dataset of another format.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="JSON file to write; by default it is printed."),
    ] = None,
    algo: Annotated[
        str,
        typer.Option(
            "--algo",
            help="Template of the algorithm, such as bc, bc_rnn_gmm, flow_policy or act, also with its "
            "folder: bc/bc_rnn_gmm.",
        ),
    ] = "flow_policy",
    images: Annotated[
        str,
        typer.Option(
            "--images",
            metavar=NAMES,
            help="Images to observe: all, none, or observation keys such as "
            "front_image,wrist_image.",
        ),
    ] = "all",
    image_size: Annotated[
        str | None,
        typer.Option(
            "--image-size", metavar="HxW", help="Resize images to height x width, such as 120x160."
        ),
    ] = None,
    skip_incomplete: Annotated[
        bool,
        typer.Option(
            "--skip-incomplete",
            help="If some demos lack an image, train only on the demos that have all.",
        ),
    ] = False,
    forecast: Annotated[
        bool,
        typer.Option(
            "--forecast/--no-forecast",
            help="Run the first updates to estimate how long training takes.",
        ),
    ] = True,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Run updates with each precision and thread count, and write the fastest of these "
            "settings.",
        ),
    ] = False,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="lerobot: write settings with which the trained policy can be converted to a LeRobot "
            "policy.",
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a configuration for a demonstration file.

    Observations, images, filter keys, scaling of actions, encoder, batches, updates and rollouts follow from the file
    and this machine. Each choice is printed with its reason. The first updates are run to estimate the training time.
    """
    from imitate.train.console import duration
    from imitate.train.first_config import first_config
    from imitate.train.forecast import fastest
    from imitate.train.forecast import forecast as time_of

    if out is not None and out.exists() and not overwrite:
        raise ConfigError(f"{out}: exists already: name another with --out, or add --overwrite")
    if for_ not in (None, "lerobot"):
        raise ConfigError(f"--for {for_}: unknown; write --for lerobot")
    made = first_config(file, algo, images, _sides(image_size), skip_incomplete, for_)
    check_trainable(load_config(made.tree))
    for topic, words in made.reasons:
        typer.echo(f"{topic:<{TOPIC_WIDTH}}  {words}", err=True)
    if measure:
        chosen, words = fastest(made.tree)
        made.tree["train"].update(chosen)
        typer.echo(f"{'measured':<{TOPIC_WIDTH}}  {words}", err=True)
    if forecast:
        words = time_of(made.tree)
        typer.echo(f"{'time':<{TOPIC_WIDTH}}  {words}", err=True)
    elif made.image_s:
        words = f"at least {duration(made.image_s)} for the images on this CPU, by a rough estimate; nothing was run"
        typer.echo(f"{'time':<{TOPIC_WIDTH}}  {words}", err=True)
    text = json.dumps(made.tree, indent=4) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        write_text(out, text)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error}; choose another --out") from None
    typer.echo(f"{'written':<{TOPIC_WIDTH}}  {out}", err=True)
    typer.echo(f"{'next':<{TOPIC_WIDTH}}  imitate train --config {out}", err=True)


def _sides(text: str | None) -> tuple[int, int] | None:
    """Return height and width from a text such as ``120x160``."""
    if text is None:
        return None
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise ConfigError(f"--image-size {text}: expected HEIGHTxWIDTH in pixels, such as 120x160")
    return int(height), int(width)


@app.command(
    epilog=examples(
        "imitate config show robosuite/lift/bc --set train.batch_size=64",
        "imitate config show my.json",
    )
)
def show(
    file: Annotated[str, typer.Argument(help="JSON file, or name such as robosuite/lift/bc.")],
    set_: SetKeys = None,
) -> None:
    """Print the whole configuration, with every default."""
    typer.echo(load_config(file, set_ or ()).to_json())


@app.command(
    epilog=examples(
        "imitate config explain theirs.json", "imitate config explain --differing theirs.json"
    )
)
def explain(
    file: Annotated[str, typer.Argument(help="JSON file of imitate or robomimic.")],
    set_: SetKeys = None,
    differing: Annotated[
        bool, typer.Option("--differing", help="Show only keys that robomimic treats differently.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Explain what each key of a configuration means, and how robomimic differs."""
    config = load_config(file, set_ or ())
    found = [
        one
        for one in explained(read_tree(file, quiet=True), config)
        if one.robomimic or not differing
    ]
    if json_:
        typer.echo(json.dumps([one._asdict() for one in found], indent=2))
        return
    for line in lines(iter(found)):
        typer.echo(line)


@app.command(
    epilog=examples("imitate config check my.json", "imitate config check configs/bc/*.json")
)
def check(
    files: Annotated[list[str], typer.Argument(help="JSON files.")],
) -> None:
    """Report errors in configurations (exit code 2 if there are any)."""
    from imitate.algo.base.factory import check_algorithm

    problems = []
    for file in files:
        try:
            config = load_config(file)
        except ConfigError as error:
            problems.append(str(error))
            continue
        config, lines = trainable_template(config)
        for line in lines:
            typer.echo(f"{file}: {line}", err=True)
        try:
            check_trainable(config)
            check_algorithm(config)
        except ConfigError as error:
            problems += [f"{file}: {line}" for line in str(error).splitlines()]
            continue
        typer.echo(f"{file}: good")
    if problems:
        raise ConfigError("\n".join(problems))


@app.command(epilog=examples("imitate config schema --out schemas"))
def schema(
    out: Annotated[
        Path, typer.Option(help="Folder in which <algo_name>.json is written for each algorithm.")
    ] = Path("configs/schema"),
) -> None:
    """Write JSON schemas of all configurations, for editors."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for algo_name in available():
            path = out / f"{algo_name}.json"
            write_text(path, schema_text(algo_name))
            typer.echo(path)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error}; choose another --out") from None


@app.command(epilog=examples("imitate config keys", "imitate config keys bc"))
def keys(
    algo_name: Annotated[
        str | None,
        typer.Argument(
            help="Algorithm whose section is shown; default: the sections that all algorithms share."
        ),
    ] = None,
) -> None:
    """Print the table of all keys: type, default, meaning."""
    if algo_name:
        typer.echo(table(find(algo_name).section, "algo"), nl=False)
    else:
        typer.echo(table(Config, ""), nl=False)
