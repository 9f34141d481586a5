"""``imitate convert-checkpoint``: convert checkpoints between imitate and other toolkits."""

from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.options import Overwrite, RenameObs
from imitate.errors import CheckpointError, nearest, printable
from imitate.policy.renaming import Rename, rename_words


def command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Checkpoint of imitate or robomimic, a run folder, or the folder of a "
            "LeRobot policy."
        ),
    ],
    target: Annotated[Path, typer.Argument(help="File to write; a folder with --to lerobot.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Toolkit and version that will read the checkpoint: robomimic-0.5 (also for 0.4), robomimic-0.3, "
            "lerobot (0.4 to 0.6), lerobot-0.3, lerobot-plugin, or imitate.",
        ),
    ] = "robomimic-0.5",
    acting_only: Annotated[
        bool,
        typer.Option(
            "--acting-only",
            help="With --to imitate: write only the networks that act; the copy cannot be resumed.",
        ),
    ] = False,
    rename: RenameObs = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a checkpoint in another toolkit's layout.

    The written policy acts like SOURCE, except that robomimic and LeRobot do not clip actions to their limits.
    If the other toolkit lacks a feature of the policy, the error names it. Optimizers are not written: training resumes
    there with the weights only.

    lerobot-rollout --policy.path=FOLDER runs the folder that --to lerobot writes (act and diffusion_policy). A folder
    of --to lerobot-plugin (any policy) also needs the package of plugins/lerobot_policy_imitate.

    With --to imitate, --rename is saved in the copy, and every later command uses it. With --acting-only the copy lacks
    the optimizers, and the critics and target networks that acting does not need.
    """
    from imitate.algo.base.acting import OMITTED, REMEDY
    from imitate.policy.checkpoint import acting_only as acting_checkpoint
    from imitate.policy.checkpoint import load_checkpoint, save_checkpoint
    from imitate.policy.export import LAYOUTS, RELEASES, to_lerobot, to_robomimic
    from imitate.policy.loading import policy_from_checkpoint
    from imitate.policy.renaming import joined, parse_rename
    from imitate.system.run_folder import find_checkpoint

    _refuse(target, to, rename=bool(rename), acting_only=acting_only, overwrite=overwrite)
    ckpt = load_checkpoint(find_checkpoint(source))
    if OMITTED in ckpt["model"] and to != "imitate":
        raise CheckpointError(f"{source}: {REMEDY}")
    if rename:
        ckpt["rename"] = joined(ckpt.get("rename"), parse_rename(rename))
        policy_from_checkpoint(
            device="cpu", ckpt_dict=ckpt
        )  # raises UserError for names that the policy does not have
    algo_name = ckpt["algo_name"]
    if acting_only:
        ckpt = acting_checkpoint(ckpt, source)
    try:
        if to in LAYOUTS:
            to_lerobot(ckpt, target, to)
        elif to != "imitate":
            ckpt = to_robomimic(ckpt, to)
    except CheckpointError as error:
        advice = "; --to imitate writes imitate's own format" if to in RELEASES else ""
        raise CheckpointError(f"{source}: {error}{advice}") from error
    if to not in LAYOUTS:
        save_checkpoint(ckpt, target)
    names = _names(ckpt.get("rename"), source, to)
    part = ", acting networks alone: it cannot be resumed" if acting_only else ""
    typer.echo(printable(f"{target}: {algo_name}, for {to}{part}{names}"))


def _refuse(target: Path, to: str, *, rename: bool, acting_only: bool, overwrite: bool) -> None:
    """Refuse options that contradict each other, and a file that exists."""
    from imitate.policy.export import LAYOUTS, RELEASES

    known = (*RELEASES, *LAYOUTS, "imitate")
    if to not in known:
        raise CheckpointError(f"--to {to}: unknown; {nearest(to, known)}")
    if target.exists() and (to in LAYOUTS or not overwrite):
        advice = (
            "choose another name" if to in LAYOUTS else "add --overwrite, or choose another name"
        )
        raise CheckpointError(f"{target}: exists already; {advice}")
    if rename and to != "imitate":
        raise CheckpointError(
            f"--rename can only be saved in imitate's own format: add --to imitate (got {to})"
        )
    if acting_only and to != "imitate":
        raise CheckpointError(
            f"--acting-only writes imitate's own format: add --to imitate (got {to})"
        )


def _names(saved: Rename | None, source: Path, to: str) -> str:
    """Describe the observation names that are saved in a checkpoint."""
    if not saved:
        return ""
    if to == "imitate":
        return f", takes {rename_words(saved)}"
    return f", with the names of its data; {source} takes {rename_words(saved)}"
