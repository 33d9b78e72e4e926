"""`draftloop`: the command line. Starts all roles, generates, inspects, serves one role."""

from __future__ import annotations

from draftloop.interruption import exit_on_interrupt

with exit_on_interrupt("draftloop"):  # imports take a second
    import io
    import os
    import sys
    from typing import Annotated

    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC's core reads it on import

    import typer

    from draftloop import __version__
    from draftloop.client import DEFAULT_ADDRESS
    from orchestrator import (
        cli_batch,
        cli_generate,
        cli_health,
        cli_keys,
        cli_phrases,
        cli_profile,
        cli_up,
        terminal,
    )
    from orchestrator.cli_common import (
        ApiKey,
        Server,
        TlsCa,
        TlsCertificate,
        TlsKey,
        TlsServerName,
        clear_errors,
        console,
        make_client,
    )
    from orchestrator.cli_health import Role
    from orchestrator.role_process import exec_role

app = typer.Typer(
    help="Lossless speculative decoding: the same tokens, sooner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cli_phrases.app, name="phrases")
app.add_typer(cli_keys.app, name="keys")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        console.print(__version__)
        raise typer.Exit


app.command(context_settings=cli_up.PASS_UNKNOWN_ARGUMENTS)(cli_up.up)
app.command()(cli_generate.generate)
app.command()(cli_batch.batch)


@app.command()
def info(
    server: Server = DEFAULT_ADDRESS,
    api_key: ApiKey = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_server_name: TlsServerName = "",
) -> None:
    """Show models, strategies and limits of a running deployment."""
    tls = (tls_ca, tls_certificate, tls_key, tls_server_name)
    with clear_errors(), make_client(server, api_key, *tls) as client:
        terminal.show_info(console, client.info())


app.command()(cli_profile.profile)
app.command()(cli_health.health)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def serve(
    context: typer.Context,
    role: Annotated[str, typer.Argument(help=f"One of {', '.join(Role)}.")],
) -> None:
    """Serve one role in this process; its flags follow (`draftloop serve verifier --help`)."""
    if role in ("--help", "-h"):
        console.print(context.get_help(), markup=False)
        return
    if role not in [*Role]:
        raise typer.BadParameter(f"{role!r} is none of {', '.join(Role)}", param_hint="ROLE")
    exec_role(role, context.args)


def main() -> None:
    """The command's entry point."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # characters it lacks become question marks
    app()


if __name__ == "__main__":
    main()
