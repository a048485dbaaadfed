"""forebay console: pages in a browser."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import click

from forebay.cli._commands import option
from forebay.cli._database import address_of
from forebay.cli._input import is_terminal, stdin_line
from forebay.cli.options import Dsn
from forebay.cli.text import console as terminal
from forebay.config import listen_address
from forebay.errors import ConfigError, shown

_NEEDED: Final = ("starlette", "jinja2", "uvicorn")

_EVERY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared only


def console(
    *,
    listen: Annotated[
        str,
        option(
            "--listen HOST:PORT",
            "Where it listens. For other machines, give --passwords or --trust-header too.",
        ),
    ] = "127.0.0.1:8040",
    host: Annotated[
        list[str] | None,
        option("--host NAME", "A name under which people reach it, without port. Repeatable."),
    ] = None,
    passwords: Annotated[
        Path | None,
        option("--passwords FILE", "Let in whom this file names: lines that --hash makes."),
    ] = None,
    trust_header: Annotated[
        str | None,
        option("--trust-header NAME", "Let in whom a proxy names in this header."),
    ] = None,
    trust_from: Annotated[
        list[str] | None,
        option("--trust-from NETWORK", "The address or network of that proxy. Repeatable."),
    ] = None,
    hash_: Annotated[
        str | None,
        option(
            "--hash NAME",
            "Only ask for a password, and print the line of this person for --passwords; with "
            "--acts, of one who may act.",
        ),
    ] = None,
    database: Annotated[
        list[str] | None,
        option("--database NAME=ADDRESS", "A database, and its name in the pages. Repeatable."),
    ] = None,
    acts_database: Annotated[
        list[str] | None,
        option(
            "--acts-database NAME=ADDRESS",
            "Another address for the acts, with the rights of an operator. Repeatable.",
        ),
    ] = None,
    acts: Annotated[
        bool,
        option("--acts", "Also let people act, under their name, or that of your login."),
    ] = False,
    dsn: Dsn = None,
) -> None:
    """Show queues, jobs, failures and the database in a browser.

    It reads only, unless --acts is given, and serves this machine only, unless --passwords or
    --trust-header says who may look. It speaks plain HTTP: TLS is the business of a proxy.
    """
    try:
        import uvicorn

        from forebay.console import access, asgi
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        raise ConfigError(
            "forebay console",
            f"needs the library {error.name}, which is not installed",
            hint="pip install 'forebay[console]'",
        ) from None
    if hash_ is not None:
        click.echo(access.password_line(hash_, _password(), acts=acts))
        return
    place = _place(listen, host, is_guarded=bool(passwords or trust_header))
    authorize: Any = None
    if passwords is not None:
        authorize = access.Passwords(passwords)
    if trust_header is not None or trust_from:
        if passwords is not None or trust_header is None or not trust_from:
            raise ConfigError("--trust-header", "needs --trust-from, and excludes --passwords")
        authorize = access.TrustedHeader(trust_header, trust_from)
    databases = _databases(database, dsn)
    for_acts = _named(acts_database or [], "--acts-database")
    at = f"[{place[0]}]" if ":" in place[0] else place[0]
    hosts = (*access.LOOPBACK, at, *(host or []))
    app = asgi(databases, hosts=hosts, authorize=authorize, acts=acts, acts_databases=for_acts)
    first = next(iter(databases))
    if passwords is not None and not _is_loopback(place[0]):
        terminal(stderr=True).print(
            "warning: passwords cross the network as plain text. Let a proxy with TLS stand before"
            " it, and listen on 127.0.0.1.",
            style="yellow",
            soft_wrap=True,
        )
    config = uvicorn.Config(
        app,
        host=place[0],
        port=place[1],
        proxy_headers=False,  # the peer is the one of the socket, whatever a header says
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,
    )

    class Server(uvicorn.Server):
        """Says its address when it answers, and not before it can be stopped."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            terminal().print(f"console: http://{at}:{place[1]}/{first}/  (end with Ctrl-C)")

    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the ordinary end
        Server(config).run()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _place(listen: str, hosts: list[str] | None, *, is_guarded: bool) -> tuple[str, int]:
    """Return the host and port; refuse those of other machines while it lets all in."""
    place = listen_address(listen)
    if isinstance(place, str):
        raise ConfigError("--listen", f"is {listen}, not HOST:PORT")
    if not _is_loopback(place[0]) and not is_guarded:
        raise ConfigError(
            "--listen",
            f"is {listen}, an address of other machines, and all who reach it would be let in",
            hint="Give --passwords FILE, or --trust-header NAME with --trust-from NETWORK.",
        )
    if place[0] in _EVERY_ADDRESS and not hosts:
        raise ConfigError(
            "--host",
            f"is missing: --listen {listen} does not say how people reach it",
            hint="Give the name or address in their browser, as --host ops.example.org.",
        )
    return place


def _password() -> str:
    """Ask for a password without showing it; in a pipe, its first line."""
    if is_terminal():
        found: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return found
    return stdin_line("PASSWORD")


def _databases(given: list[str] | None, dsn: str | None) -> Mapping[str, str]:
    if not given:
        return {"main": address_of(dsn)}
    if dsn is not None:
        raise ConfigError("--dsn", "cannot be given with --database")
    return _named(given, "--database")


def _named(given: list[str], option_name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, address = text.partition("=")
        if not equals or not address:
            raise ConfigError(
                option_name, f"is {shown(text)}, not NAME=ADDRESS", hint="As shop=postgresql://..."
            )
        if name in found:
            raise ConfigError(option_name, f"has the name {name} twice")
        found[name] = address
    return found
