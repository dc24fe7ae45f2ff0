"""`semlabel serve`: turns options into the plan of a server, and refuses what would be unsafe.

How it is served stands in `semlabel.serving`.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semlabel.cli.common import DEFAULT_CONFIG, ConfigOption, project, say
from semlabel.errors import SettingsError

if TYPE_CHECKING:
    from semlabel.manifest import Manifest
    from semlabel.serving.access import Access
    from semlabel.serving.plan import Plan, Tls

_EXTRA = 'the server\'s packages are not installed; install "semlabel[serve]"'


def serve(
    labeler: Annotated[
        Path | None,
        typer.Option("--labeler", help="A labeler directory or a link to one, which is followed.", metavar="DIR"),
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    http: Annotated[str, typer.Option("--http", metavar="HOST:PORT")] = "127.0.0.1:8080",
    grpc: Annotated[str, typer.Option("--grpc", help='"" for none.', metavar="HOST:PORT")] = "127.0.0.1:8081",
    workers: Annotated[int, typer.Option("--workers", min=1, help="Front processes.")] = 1,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda; else as set for the project.")] = "",
    method: Annotated[
        str, typer.Option("--method", help="auto, mis, prefix_cache or independent; else as set for the project.")
    ] = "",
    threads: Annotated[int, typer.Option("--threads", min=0, help="Threads of the engine; 0 leaves it to torch.")] = 0,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate, PEM.", metavar="FILE")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its private key, PEM.", metavar="FILE")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option("--tls-client-ca", help="Answer only clients these certify.", metavar="FILE")
    ] = None,
) -> None:
    """Answer /v1/score and /v1/label (HTTP) and semlabel.v1.Labeler (gRPC) until it is told to end.

    With a project (--config) it follows the labeler of the current publication and labels its catalog; with
    --labeler alone it follows that directory or link. With SEMLABEL_SERVE_TOKEN in the environment, clients must send
    it; who sends that of SEMLABEL_SERVE_PERSIST_TOKEN may persist updates. SIGTERM: what was taken is answered first.

    \b
    Example:
      semlabel serve --labeler run/labelers/current --http 127.0.0.1:8080 --workers 2
    """
    needed_packages()
    from semlabel.manifest import verify
    from semlabel.serving import supervisor
    from semlabel.serving.access import Access
    from semlabel.serving.plan import LOOPBACK, Address, Plan
    from semlabel.serving.pointer import Pointer
    from semlabel.serving.processes import configure_logging

    settings = project(config) if labeler is None or config.exists() else None
    paths = settings.paths if settings else None
    pointer = Pointer(
        labeler=labeler.absolute() if labeler else None,
        labelers=paths.labelers if paths else None,
        published=paths.published if paths else None,
    )
    manifest = verify(pointer.wanted().current)  # the engine would say it again and again, and answer nothing
    access = Access.from_environment(os.environ)
    tls = _tls(tls_cert, tls_key, tls_client_ca)
    addresses = [Address.parse(http, "--http"), *([Address.parse(grpc, "--grpc")] if grpc else [])]
    for address in addresses:
        if address.host not in LOOPBACK and access.answer is None and not (tls and tls.clients):
            raise SettingsError(
                f"{address.host} can be reached from outside; set SEMLABEL_SERVE_TOKEN or --tls-client-ca first"
            )
    if access.persist is not None and paths is None:
        raise SettingsError("updates are kept in a project: give --config, or unset SEMLABEL_SERVE_PERSIST_TOKEN")
    spool = paths.spool if paths and access.persist is not None else None
    if spool is not None:
        _refuse_unwritable(spool)
    plan = Plan(
        pointer=pointer,
        socket=Path("engine"),
        http=addresses[0],
        grpc=addresses[1] if grpc else None,
        workers=workers,
        device=device or (settings.model.device if settings else "auto"),
        threads=threads,
        tls=tls,
        spool=spool,
    )
    if settings is not None:
        # Rounds as the nightly run makes them, so that margins are the same to the last bit.
        scoring = settings.scoring
        same = {name: getattr(scoring, name) for name in ("method", "items_per_round", "max_round_tokens", "lanes")}
        plan = plan.model_copy(update=same | {"threads": threads or scoring.threads})
    if method:
        plan = plan.model_copy(update={"method": method})
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", plan.device):
        raise SettingsError(f"--device {plan.device}: no device of that name; use auto, cpu, cuda or cuda:N")
    configure_logging("serve")
    say(_about(manifest, plan, access))
    supervisor.run(plan, say)


def _about(manifest: "Manifest", plan: "Plan", access: "Access") -> str:
    """What is about to be served, in one line; the addresses follow when they are had."""
    facts = [
        f"labeler {manifest.digest[:12]}",
        manifest.precision,
        "no threshold, so labels are null" if manifest.threshold is None else f"threshold {manifest.threshold:.4f}",
        "clients need a token" if access.answer else "no token is asked for",
        f"updates are kept in {plan.spool}" if plan.spool else "updates are not kept",
        f"{plan.workers} front{'s' if plan.workers > 1 else ''}",
    ]
    return "; ".join(facts)


def _refuse_unwritable(spool: Path) -> None:
    """Raise SettingsError where updates could not be kept: every one of them would fail later."""
    try:
        spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=spool):
            pass
    except OSError as error:
        raise SettingsError(
            f"{spool}: updates cannot be kept there ({error.strerror}); make it writable, set [serving] spool_dir, or "
            "unset SEMLABEL_SERVE_PERSIST_TOKEN"
        ) from None


def needed_packages() -> None:
    """Raise SettingsError where the packages of the server are not installed."""
    try:
        import fastapi  # noqa: F401
        import grpc_health  # noqa: F401
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise SettingsError(f"{_EXTRA} ({error.name} is missing)") from None


def _tls(certificate: Path | None, key: Path | None, clients: Path | None) -> "Tls | None":
    from semlabel.serving.plan import Tls

    if (certificate is None) != (key is None) or (clients is not None and certificate is None):
        raise SettingsError("--tls-cert and --tls-key belong together, and --tls-client-ca needs both")
    for file in (certificate, key, clients):
        if file is not None and not file.is_file():
            raise SettingsError(f"{file}: no such file; expected PEM")
    if certificate is None or key is None:
        return None
    _refuse_unusable(certificate, key, clients)
    return Tls(certificate=certificate.absolute(), key=key.absolute(), clients=clients.absolute() if clients else None)


def _refuse_unusable(certificate: Path, key: Path, clients: Path | None) -> None:
    """Raise SettingsError for files that every front would die of."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password here OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise SettingsError(
            f"--tls-cert {certificate} and --tls-key {key} cannot be used ({_why(error)}); expected a "
            "certificate in PEM and its private key without a password"
        ) from None
    try:
        if clients is not None:
            context.load_verify_locations(clients)
    except OSError as error:
        raise SettingsError(
            f"--tls-client-ca {clients} cannot be used ({_why(error)}); expected certificates in PEM"
        ) from None


def _why(error: OSError) -> str:
    # OpenSSL's reason is a name; its message ends with a line number of C code.
    return str(getattr(error, "reason", None) or error.strerror).replace("_", " ").lower()
