"""``imitate serve``: serve a policy to clients on this machine or on others."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from imitate.cli.options import ActingDevice, ActingPrecision, RenameObs, tell_saved_names
from imitate.cli.robot.policies import read_token, refuse_device
from imitate.data.download.download import sha256_of
from imitate.errors import UserError
from imitate.system.extras import missing
from imitate.system.text import counted

if TYPE_CHECKING:
    from imitate.deploy.server.server import Served
    from imitate.policy.loading import Precision


def command(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT", help="Checkpoint, run folder, or bundle of the policy to serve."
        ),
    ],
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Address to listen on; every address except loopback (127.0.0.1, ::1) needs "
            "--token-file.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 chooses a free one."),
    ] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="File with the token that clients must send."),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert",
            help="PEM file with the server's certificate; clients then connect by wss://.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key",
            help="File with the private key of --tls-cert, if the certificate's file does not contain "
            "the key.",
        ),
    ] = None,
    max_sessions: Annotated[
        int, typer.Option("--max-sessions", min=1, help="Largest number of clients at a time.")
    ] = 64,
    device: ActingDevice = None,
    threads: Annotated[
        int,
        typer.Option(
            "--threads", min=0, help="CPU threads per prediction; 0 uses torch's default."
        ),
    ] = 1,
    precision: ActingPrecision = "fp32",
    rename: RenameObs = None,
    json_: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the server's address and the policy's observations and actions (schema) as one "
            "line of JSON.",
        ),
    ] = False,
) -> None:
    """Serve a policy over WebSocket.

    Clients are imitate.deploy.RemotePolicy, `imitate run ws://HOST:PORT`, and openpi's client. Each connection has its
    own policy state; observations that wait at the same time are answered by one batched prediction.

    Exit codes: 0 ended by Ctrl-C or SIGTERM; 2 invalid input.
    """
    try:
        from imitate.deploy.server.server import PolicyServer
    except ImportError as error:
        raise UserError(f"imitate serve: {missing('deploy', error)}") from error
    from imitate.system.run_folder import to_json

    path, policy = served(checkpoint, device, threads, rename or (), precision)
    server = PolicyServer(
        policy,
        host,
        port,
        token=read_token(token_file),
        tls=_tls(tls_cert, tls_key),
        max_sessions=max_sessions,
    )

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    schema = policy.schema
    if json_:
        typer.echo(to_json({"url": server.url, "hash": schema.hash, "schema": schema.to_dict()}))
    else:
        rate = "unknown" if schema.rate_hz is None else f"{schema.rate_hz:g} Hz"
        typer.echo(f"serving {path} ({schema.algorithm}) at {server.url}; Ctrl-C ends it")
        typer.echo(
            f"observations {', '.join(schema.observations)}; rate {rate}; schema {schema.hash}"
        )
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        numbers = server.statistics
        typer.echo(
            f"ended: {numbers.answered} answers to {numbers.sessions} clients, {numbers.dropped} dropped, "
            f"{counted(numbers.errors, 'error')}, {numbers.refused} refused",
            err=True,
        )
    finally:
        server.close()


def served(
    path: Path, device: str | None, threads: int, rename: Sequence[str], precision: Precision
) -> tuple[Path, Served]:
    """Return the path of the checkpoint or bundle that is served, and its policy."""
    from imitate.deploy.bundle.archive import is_bundle

    if is_bundle(path):
        from imitate.deploy.bundle.policy import BundlePolicy, ServedBundle

        refuse_device(device, precision)
        if rename:
            raise UserError(
                f"--rename: {path} is a bundle, whose names were fixed when it was exported: name its checkpoint "
                "instead, or leave --rename out"
            )
        return path, ServedBundle(BundlePolicy(path, threads=threads), sha256_of(path))
    import torch

    from imitate.deploy.server.served import ServedPolicy
    from imitate.policy.loading import policy_from_checkpoint
    from imitate.policy.renaming import parse_rename
    from imitate.system.run_folder import find_checkpoint

    if threads:
        torch.set_num_threads(threads)
    found = find_checkpoint(path)
    policy, ckpt = policy_from_checkpoint(
        device=device, ckpt_path=found, rename=parse_rename(rename), precision=precision
    )
    tell_saved_names(found, ckpt.get("rename"))
    return found, ServedPolicy(policy, sha256_of(found))


def _tls(certificate: Path | None, key: Path | None) -> Any:
    if certificate is None:
        if key is not None:
            raise UserError("--tls-key needs --tls-cert: give both options, or neither")
        return None
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"--tls-cert {certificate}: cannot be used as a certificate with key: {error}; give PEM files"
        ) from error
    return context
