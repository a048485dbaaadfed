"""The application: who may look, what a browser may do, and how a page is answered.

Invariants:
    "Only known hosts": a request whose Host header is not in the list is refused, so that a page
    of another site cannot reach the console through a name that it points here.
    "Text stays text": templates escape everything, and the content security policy allows no
    script and no style but the files of the console.
    "Nobody looks, nothing runs": without a viewer no statement reaches a database.
"""

from __future__ import annotations

import hashlib
import inspect
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from forebay._dataclass import dataclass
from forebay.client.reader import ReadTooSlow
from forebay.console._pages import PAGES, Page
from forebay.console._source import Source
from forebay.console._text import FILTERS, FUNCTIONS
from forebay.errors import ConfigError, DatabaseUnavailable, ForebayError, SchemaError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HERE: Final = Path(__file__).parent
_STATIC: Final = _HERE / "static"

#: What every answer says to the browser.
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

#: The hosts of a console that listens on this machine only.
LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")

#: Most browsers that are told of changes at once; further ones show what they loaded.
_VIEWERS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class User:
    """Who looks at the console.

    Attributes:
        name: as the event log has it.
    """

    name: str


#: Returns who makes a request; None: nobody who may.
Authorize = "Callable[[Request], User | None | Awaitable[User | None]]"


def asgi(
    databases: str | Mapping[str, str | None] | None = None,
    *,
    hosts: Sequence[str] = LOOPBACK,
    authorize: Callable[[Request], Any] | None = None,
) -> ASGIApp:
    """Return the console as an ASGI application, to mount under any prefix.

    It reads only: each statement runs in a read-only transaction and ends after two seconds.

    Args:
        databases: the address of a database, or the addresses of several by name. A name is a part
            of the address of each page: letters, digits, ``-`` and ``_``. None: one database,
            found like that of a client, from FOREBAY_DATABASE_URL, DATABASE_URL or PG*.
        hosts: the names under which it is reached, without port. A request with another Host is
            refused, since a page of a stranger could reach it through a name of his.
        authorize: called with each request; returns a ``User``, or None to refuse it. It may be a
            coroutine function. Without it, everybody who can connect may look.

    Raises:
        ConfigError: no database is given, a name is refused, or ``hosts`` is empty.
    """
    return _Console(_sources(databases), tuple(hosts), authorize).app


def _sources(databases: str | Mapping[str, str | None] | None) -> dict[str, Source]:
    given = {"main": databases} if not hasattr(databases, "items") else dict(databases or {})
    if not given:
        raise ConfigError("databases", "is empty", hint="Name one: {'main': 'postgresql://...'}.")
    for name in given:
        if not name or not all(one.isascii() and (one.isalnum() or one in "-_") for one in name):
            raise ConfigError("databases", f"has the name {name!r}, not of letters, digits, -, _")
        if name == "static":
            raise ConfigError("databases", "has the name 'static', which the console uses itself")
    return {name: Source(name, dsn) for name, dsn in given.items()}


class _Console:
    def __init__(
        self,
        sources: dict[str, Source],
        hosts: tuple[str, ...],
        authorize: Callable[[Request], Any] | None,
    ) -> None:
        if not hosts:
            raise ConfigError("hosts", "is empty", hint="Name the host under which it is reached.")
        self._sources = sources
        self._hosts = {host.lower() for host in hosts}
        self._authorize = authorize
        self._viewers = 0
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS)
        self._templates.globals.update(FUNCTIONS)
        routes = [
            Route("/", self._home),
            Mount("/static", StaticFiles(directory=_STATIC)),
            Route("/{database}", self._home),
            Route("/{database}/live", self._live),
            *(Route("/{database}" + page.path, self._answering(page)) for page in PAGES),
        ]
        inner = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: self._refused},
        )
        self.app: ASGIApp = self._guarded(inner)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        for source in self._sources.values():
            await source.close()

    def _guarded(self, app: ASGIApp) -> ASGIApp:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return

            async def with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    names = {name for name, _ in message["headers"]}
                    message["headers"] = [
                        *message["headers"],
                        *((n.lower().encode(), v.encode()) for n, v in _HEADERS.items()),
                        *([] if b"cache-control" in names else [(b"cache-control", b"no-store")]),
                    ]
                await send(message)

            if (host := self._host(scope)) not in self._hosts:
                refused = Response(
                    f"The host {host!r} is not one under which this console is reached.\n",
                    status_code=421,
                    media_type="text/plain",
                )
                await refused(scope, receive, with_headers)
                return
            await app(scope, receive, with_headers)

        return guarded

    @staticmethod
    def _host(scope: Scope) -> str:
        """Return the one Host header without its port; empty if there is none, or another one."""
        found = [value for name, value in scope["headers"] if name == b"host"]
        if len(found) != 1:
            return ""
        host = found[0].decode("latin-1").lower()
        name, colon, port = host.rpartition(":")
        return name if colon and port.isdigit() else host

    async def _user(self, request: Request) -> User | None:
        if self._authorize is None:
            return None
        found = self._authorize(request)
        user = await found if inspect.isawaitable(found) else found
        if not isinstance(user, User):
            raise HTTPException(403, "You may not look at this console.")
        return user

    def _source(self, request: Request) -> Source:
        name = request.path_params["database"]
        if name not in self._sources:
            raise HTTPException(404, f"No database is called {name}.")
        return self._sources[name]

    async def _home(self, request: Request) -> Response:
        name = request.path_params.get("database", next(iter(self._sources)))
        if name not in self._sources:
            raise HTTPException(404, f"No database is called {name}.")
        return RedirectResponse(f"{request.scope.get('root_path', '')}/{name}/", 303)

    def _answering(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            user = await self._user(request)
            source = self._source(request)
            try:
                found = await page.read(source, request)
            except DatabaseUnavailable as error:
                return self._trouble(request, source, user, error, 503, "The database is away")
            except SchemaError as error:
                return self._trouble(request, source, user, error, 503, "No schema")
            except ReadTooSlow as error:
                return self._trouble(request, source, user, error, 503, "This took too long")
            except ForebayError as error:
                return self._trouble(request, source, user, error, 400, "That does not work")
            if isinstance(found, str):  # the address of another page
                return RedirectResponse(self._link(request, source, found), 303)
            status = 404 if found.get("is_missing") else 200
            return self._page(request, source, user, page.template, found, status)

        return answer

    def _trouble(
        self,
        request: Request,
        source: Source,
        user: User | None,
        error: ForebayError,
        status: int,
        title: str,
    ) -> Response:
        facts = {"title": title, "error": error, "section": ""}
        return self._page(request, source, user, "trouble.html", facts, status)

    def _page(
        self,
        request: Request,
        source: Source,
        user: User | None,
        template: str,
        facts: Mapping[str, Any],
        status: int = 200,
    ) -> Response:
        def link(path: str = "", **query: Any) -> str:
            return self._link(request, source, path, **query)

        def here(**query: Any) -> str:
            """The present address with other values in its query."""
            merged = dict(request.query_params) | query
            path = request.url.path
            left = {name: value for name, value in merged.items() if value not in (None, "")}
            return path + (f"?{urlencode(left)}" if left else "")

        text = self._templates.get_template(template).render(
            facts,
            link=link,
            here=here,
            query=request.query_params,
            static=lambda name: f"{request.scope.get('root_path', '')}/static/{_named(name)}",
            sources=list(self._sources),
            source=source,
            user=user,
            root=request.scope.get("root_path", ""),
            pages=[page for page in PAGES if page.title],
        )
        return HTMLResponse(text, status)

    @staticmethod
    def _link(request: Request, source: Source, path: str, **query: Any) -> str:
        left = {name: value for name, value in query.items() if value not in (None, "")}
        end = f"?{urlencode(left)}" if left else ""
        return f"{request.scope.get('root_path', '')}/{source.name}/{path}{end}"

    async def _live(self, request: Request) -> Response:
        """Tell a browser whenever the numbers are new: the page then reads itself again."""
        await self._user(request)
        source = self._source(request)
        if self._viewers >= _VIEWERS_MAX:
            raise HTTPException(503, "Too many browsers are told of changes at once.")

        async def lines() -> AsyncIterator[str]:
            self._viewers += 1
            try:
                yield "retry: 3000\n\n"
                async for _ in source.changes():
                    yield f"event: {'stale' if source.failed else 'changed'}\ndata:\n\n"
            finally:
                self._viewers -= 1

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        source = next(iter(self._sources.values()))
        facts = {
            "title": "Not here" if error.status_code == 404 else "Refused",
            "error": ForebayError(str(error.detail)),
            "section": "",
        }
        return self._page(request, source, None, "trouble.html", facts, error.status_code)


def _named(name: str) -> str:
    """Return the name of a static file with its checksum, so that a new version is fetched."""
    digest = hashlib.sha256((_STATIC / name).read_bytes()).hexdigest()[:12]
    return f"{name}?{digest}"
