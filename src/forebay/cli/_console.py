"""forebay console: pages in a browser."""

from __future__ import annotations

import contextlib
import ipaddress
from typing import Annotated, Any, Final

from forebay.cli._commands import option
from forebay.cli._database import address_of
from forebay.cli.options import Dsn
from forebay.cli.text import console as terminal
from forebay.config import listen_address
from forebay.errors import ConfigError, shown

_NEEDED: Final = ("starlette", "jinja2", "uvicorn")


def console(
    *,
    listen: Annotated[
        str, option("--listen HOST:PORT", "Where it listens, on this machine only.")
    ] = "127.0.0.1:8040",
    database: Annotated[
        list[str] | None,
        option("--database NAME=ADDRESS", "A database, and its name in the pages. Repeatable."),
    ] = None,
    acts: Annotated[
        bool, option("--acts", "Also let people act, under the name of your login.")
    ] = False,
    dsn: Dsn = None,
) -> None:
    """Show queues, jobs, failures and the database in a browser.

    It reads only, unless --acts is given, and listens on this machine only. For other machines,
    mount forebay.console.asgi() into an application that knows who asks.
    """
    place = listen_address(listen)
    if isinstance(place, str) or not _is_loopback(place[0]):
        raise ConfigError(
            "--listen",
            f"is {listen}, not an address of this machine only",
            hint="Write 127.0.0.1:8040. For other machines, mount forebay.console.asgi().",
        )
    databases = _databases(database, dsn)
    try:
        import uvicorn

        from forebay.console import asgi
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        raise ConfigError(
            "forebay console",
            f"needs the library {error.name}, which is not installed",
            hint="pip install 'forebay[console]'",
        ) from None
    host, port = place
    app = asgi(databases, acts=acts)
    at = f"[{host}]" if ":" in host else host
    first = next(iter(databases))
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
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
            terminal().print(f"console: http://{at}:{port}/{first}/  (end with Ctrl-C)")

    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the ordinary end
        Server(config).run()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _databases(given: list[str] | None, dsn: str | None) -> dict[str, str | None]:
    if not given:
        return {"main": address_of(dsn)}
    if dsn is not None:
        raise ConfigError("--dsn", "cannot be given with --database")
    found: dict[str, str | None] = {}
    for text in given:
        name, equals, address = text.partition("=")
        if not equals or not address:
            raise ConfigError(
                "--database", f"is {shown(text)}, not NAME=ADDRESS", hint="As shop=postgresql://..."
            )
        if name in found:
            raise ConfigError("--database", f"has the name {name} twice")
        found[name] = address
    return found
