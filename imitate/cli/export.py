"""``imitate export``: export a policy as a bundle that runs without torch."""

from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.options import AsJson, Overwrite
from imitate.errors import UserError
from imitate.system.extras import missing
from imitate.system.text import counted

FORMATS = ("onnx",)


def command(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT", help="Checkpoint or run folder of the policy to export."
        ),
    ],
    to: Annotated[str, typer.Option("--to", help="Format: onnx.")] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Bundle to write; default: CHECKPOINT with the suffix .zip."
        ),
    ] = None,
    overwrite: Overwrite = False,
    dataset: Annotated[
        Path | None,
        typer.Option(
            "--dataset",
            help="Demonstrations whose observations, instead of random ones, are stored for the test that is run "
            "when the bundle is loaded.",
        ),
    ] = None,
    json_: AsJson = False,
) -> None:
    """Write a policy as a bundle: one file that runs with numpy and onnxruntime alone.

    `imitate run`, `imitate serve` and `imitate info` take bundles; programs load them with
    imitate.deploy.BundlePolicy. Before the file gets its final name, its actions are compared with the policy's over
    two episodes. If ONNX cannot represent a policy, the error names the reason.

    Exit codes: 0 done; 2 invalid input, or the policy cannot be exported.
    """
    if to not in FORMATS:
        raise UserError(f"--to {to}: expected {' or '.join(FORMATS)}")
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise UserError(f"imitate export: {missing('onnx', error)}") from error
    del onnx, onnxruntime
    from imitate.deploy.bundle.exporting import export_policy
    from imitate.policy.loading import policy_from_checkpoint
    from imitate.system.run_folder import find_checkpoint, to_json

    path = find_checkpoint(checkpoint)
    target = out or path.with_suffix(".zip")
    policy, ckpt = policy_from_checkpoint(device="cpu", ckpt_path=path)
    if target.exists() and target.samefile(path):
        raise UserError(f"--out {target}: is the checkpoint itself; choose another name")
    meta = dict(ckpt.get("env_metadata") or {})
    done = export_policy(policy, target, environment=meta, overwrite=overwrite, dataset=dataset)
    if json_:
        typer.echo(
            to_json(
                {
                    "bundle": str(done.path),
                    "size_mb": done.size_mb,
                    "compared_steps": done.steps,
                    "largest_difference": done.difference,
                }
            )
        )
        return
    typer.echo(
        f"{done.path}: {done.spec.schema.algorithm}, {done.size_mb:.1f} MB; over {counted(done.steps, 'step')} its "
        f"actions differ by at most {done.difference:.1g}"
    )
