"""The application: who may look, what a browser may do, and how a page is answered.

Invariants:
    "Only known hosts": a request whose Host header is not in the list is refused, so that a page
    of another site cannot reach the console through a name that it points here.
    "Text stays text": templates escape everything, and the content security policy allows no
    script and no style but the files of the console.
    "No viewer, no statement": without a viewer no statement reaches a database.
"""

from __future__ import annotations

import asyncio
import functools
import getpass
import hashlib
import inspect
import re
from collections.abc import Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from forebay._actor import acting_as
from forebay._dataclass import dataclass
from forebay.client.reader import ReadRefused, ReadTooSlow, refusal
from forebay.console._acts import ACTS, DESTRUCTIVE, FILTER, LIMITS, PERMISSIONS, Act, Done, Run
from forebay.console._causes import shown_on, titled
from forebay.console._pages import DEFAULT_COLUMNS, PAGES, Page
from forebay.console._source import Source
from forebay.console._text import FILTERS, FUNCTIONS
from forebay.errors import (
    ConfigError,
    DatabaseUnavailable,
    ForebayError,
    InvalidJob,
    PermissionDenied,
    SchemaError,
    shown,
)
from forebay.model import checks
from forebay.model.text import logger, whole_number

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logger("forebay.console")

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

#: A name or an address in a browser, without the port.
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")

#: The hosts of a console that listens on this machine only.
LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")

#: Characters of the name of a person.
_NAME_MAX: Final = 200

_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_FORM_BYTES_MAX: Final = 100_000

#: In the scope of a request: who makes it.
_USER: Final = "forebay.console.user"

#: Most pages that are kept for all viewers until the numbers change.
_SHARED_MAX: Final = 20

#: Most browsers that learn of changes at once; further ones show what they loaded.
_VIEWERS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class User:
    """Who looks at the console.

    Attributes:
        name: as the event log has it.
        permissions: a set, list or tuple of what this person may do, of ``change jobs``, ``change
            queues``, ``change workers``, ``change schedules``, ``change endpoints`` and ``purge``;
            empty: look only. Kept as a frozenset.

    Raises:
        ConfigError: the name is not a text of 1 to 200 characters, or has a control character; or
            ``permissions`` are something else.
    """

    name: str
    permissions: Collection[str] = frozenset()

    def __post_init__(self) -> None:
        try:
            checks.checked_text(self.name, "name", characters_max=_NAME_MAX)
        except InvalidJob as error:
            raise ConfigError("name", str(error.problem)) from None
        given: Any = self.permissions
        hint = f"Permissions are {', '.join(PERMISSIONS)}."
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Collection):
            raise ConfigError("permissions", f"are {shown(given)}, which is no set", hint=hint)
        for each in given:
            if not isinstance(each, str) or each not in PERMISSIONS:
                raise ConfigError("permissions", f"has {shown(each)}", hint=hint)
        object.__setattr__(self, "permissions", frozenset(given))


class _Visit(NamedTuple):
    """A request for a page of one database, and who makes it."""

    request: Request
    source: Source
    user: User | None

    @property
    def root(self) -> str:
        """The prefix under which the console is mounted."""
        return str(self.request.scope.get("root_path", ""))

    def link(self, path: str = "", **query: Any) -> str:
        """Return the address of a page of this database."""
        return f"{self.root}/{self.source.name}/{path}{_query(query)}"

    def here(self, **query: Any) -> str:
        """Return the present address with other values in its query."""
        given = self.request.query_params
        now = {name: given.getlist(name) for name in given}
        return self.request.url.path + _query({**now, **query})


#: What a page says of an error, and its status.
_TROUBLE: Final = (
    (DatabaseUnavailable, "The database is away", 503),
    (SchemaError, "The schema is not there", 503),
    (ReadTooSlow, "This took too long", 503),
    (PermissionDenied, "The login role may not do this", 403),
    (ReadRefused, "The database refused", 403),
    (ForebayError, "That does not work", 400),
)


#: How long a person waits for what an act would do: about two million jobs are counted meanwhile.
_PLAN_SECONDS: Final = 30.0

_TOO_MANY: Final = f"the jobs that match were not counted within {_PLAN_SECONDS:g} s"
_FEWER: Final = "Choose fewer, by more filters; or use the command line, which shows its progress."


def asgi(
    databases: str | Mapping[str, str | None] | None = None,
    *,
    hosts: Sequence[str] = LOOPBACK,
    authorize: Callable[[Request], Any] | None = None,
    acts: bool = False,
    acts_databases: str | Mapping[str, str] | None = None,
) -> Console:
    """Return the console as an ASGI application, to mount under any prefix.

    Each statement of a page runs in a read-only transaction and ends after two seconds.

    Args:
        databases: the address of a database, or the addresses of several by name. A name is a part
            of the address of each page: letters, digits, ``-`` and ``_``. None: one database,
            found like that of a client, from FOREBAY_DATABASE_URL, DATABASE_URL or PG*.
        hosts: the names under which it is reached, without port. A request with another Host is
            refused, since a foreign site could reach it through a name that points here.
        authorize: called with each request; returns a ``User``, or None to refuse it. It may be a
            coroutine function. An ``HTTPException`` of Starlette is the answer. Without it, each
            who can connect may look.
        acts: whether people may act: those whose ``User`` has the permission, or without
            ``authorize`` all. The login role decides what the database allows.
        acts_databases: other addresses for acts and their previews, as ``databases``: then a page
            reads as a member of forebay_reader, and only an act has the rights of an operator.

    Raises:
        ConfigError: no database is given, a name is refused, or ``hosts`` is empty.
    """
    return Console(_sources(databases, acts_databases), tuple(hosts), authorize, acts=acts)


def _sources(
    databases: str | Mapping[str, str | None] | None, for_acts: str | Mapping[str, str] | None
) -> dict[str, Source]:
    given: dict[str, str | None]
    given = (
        {"main": databases} if databases is None or isinstance(databases, str) else {**databases}
    )
    if not given:
        raise ConfigError("databases", "is empty", hint="Name one: {'main': 'postgresql://...'}.")
    for name in given:
        if not name or not all(one.isascii() and (one.isalnum() or one in "-_") for one in name):
            raise ConfigError("databases", f"has the name {name!r}, not of letters, digits, -, _")
        if name == "static":
            raise ConfigError("databases", "has the name 'static', which the console uses itself")
    others = {"main": for_acts} if isinstance(for_acts, str) else dict(for_acts or {})
    if unknown := others.keys() - given.keys():
        raise ConfigError("acts_databases", f"has the name {min(unknown)}, which no database has")
    return {name: Source(name, dsn, others.get(name)) for name, dsn in given.items()}


class Console:
    """The console as an ASGI application; ``asgi()`` makes it.

    An application that calls its lifespan needs nothing else. One that mounts it, as Starlette and
    FastAPI do, awaits ``close()`` when it ends. Sessions close by themselves half a minute after
    the last page.
    """

    def __init__(
        self,
        sources: dict[str, Source],
        hosts: tuple[str, ...],
        authorize: Callable[[Request], Any] | None,
        *,
        acts: bool,
    ) -> None:
        if not hosts:
            raise ConfigError("hosts", "is empty", hint="Name the host under which it is reached.")
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise ConfigError(
                    "hosts", f"has {shown(host)}, not a name or address", hint="As ops.example.org."
                )
        self._sources = sources
        self._hosts = {host.lower() for host in hosts}
        self._authorize = authorize
        self._acts = acts
        self._viewers = 0
        #: By address and person, a page that changes only with the numbers, and of which it is.
        self._shared: dict[tuple[str, str, User | None], tuple[int, Response]] = {}
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
            Route("/", self._first_page),
            Mount("/static", StaticFiles(directory=_STATIC)),
            Route("/{database}", self._first_page),
            Route("/{database}/live", self._live),
            Route("/{database}/act", self._preview, methods=["GET"]),
            Route("/{database}/act", self._do, methods=["POST"]),
            Route("/{database}/run", self._run, methods=["GET"]),
            Route("/{database}/run", self._stop, methods=["POST"]),
            *(Route("/{database}" + page.path, self._answering(page)) for page in PAGES),
        ]
        inner = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: self._refused},
        )
        self._app: ASGIApp = self._guarded(inner)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._app(scope, receive, send)

    async def close(self) -> None:
        """Close the sessions; a later request opens new ones."""
        for source in self._sources.values():
            await source.close()

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        await self.close()

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
                text = f"The host {host!r} is not one under which this console is reached.\n"
                refused = Response(text, 421, media_type="text/plain")
                await refused(scope, receive, with_headers)
                return
            # Before anything else: who is refused does not learn the names of databases.
            try:
                user = await self._user(Request(scope, receive))
            except HTTPException as error:
                refused = Response(
                    f"{error.detail}\n", error.status_code, error.headers, "text/plain"
                )
                await refused(scope, receive, with_headers)
                return
            except ConfigError as error:
                # The application's authorize is at fault: who asks may not see why.
                log.error("no page was shown: %s; %s", error, error.hint)
                refused = Response("authorize has failed.\n", 500, media_type="text/plain")
                await refused(scope, receive, with_headers)
                return
            await app({**scope, _USER: user}, receive, with_headers)

        return guarded

    @staticmethod
    def _host(scope: Scope) -> str:
        """Return the one Host header without its port; empty if there is none, or another one."""
        found = [value for name, value in scope["headers"] if name == b"host"]
        if len(found) != 1:
            return ""
        host = str(found[0], "latin-1").lower()
        name, colon, port = host.rpartition(":")
        return name if colon and port.isdigit() else host

    async def _user(self, request: Request) -> User | None:
        if self._authorize is None:
            return None
        found = self._authorize(request)
        user = await found if inspect.isawaitable(found) else found
        if isinstance(user, User):
            return user
        if user is not None and user is not False:
            raise ConfigError(
                "authorize",
                f"returned {shown(user)}, which is no User",
                hint='Return User("ada"), or None to refuse the request.',
            )
        raise HTTPException(403, "You may not look at this console.")

    def _source(self, request: Request) -> Source:
        name = request.path_params["database"]
        if name not in self._sources:
            raise HTTPException(404, f"No database is called {name}.")
        return self._sources[name]

    async def _first_page(self, request: Request) -> Response:
        name = request.path_params.get("database", next(iter(self._sources)))
        if name not in self._sources:
            raise HTTPException(404, f"No database is called {name}.")
        return RedirectResponse(f"{request.scope.get('root_path', '')}/{name}/", 303)

    def _answering(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            visit = self._visit(request)
            try:
                found = await page.read(visit.source, request)
            except Exception as error:
                return self._failed(visit, error)
            if isinstance(found, str):  # the address of another page
                return RedirectResponse(visit.link(found), 303)
            return self._page(visit, page.template, found, 404 if found.get("is_missing") else 200)

        async def answer_all(request: Request) -> Response:
            visit = self._visit(request)
            address = (visit.root + request.url.path, request.url.query, visit.user)
            try:
                await visit.source.overview()
                await visit.source.problems()
            except Exception as error:
                return self._failed(visit, error)
            version = visit.source.version
            known = self._shared.get(address)
            if known is None or known[0] != version:
                if len(self._shared) >= _SHARED_MAX:
                    self._shared.clear()
                known = (version, await answer(request))
                if known[1].status_code == 200:
                    self._shared[address] = known
            return known[1]

        return answer_all if page.is_shared else answer

    def _visit(self, request: Request) -> _Visit:
        return _Visit(request, self._source(request), request.scope[_USER])

    def _may(self, user: User | None, name: str) -> bool:
        """Whether a person may do an act."""
        if not self._acts:
            return False
        return self._authorize is None or (
            user is not None and ACTS[name].permission in user.permissions
        )

    def _act(self, visit: _Visit, form: Mapping[str, str]) -> Act:
        act = ACTS.get(form.get("act", ""))
        if act is None:
            raise HTTPException(404, "There is no such act.")
        if not self._may(visit.user, act.name):
            raise HTTPException(403, f"You may not {act.permission} here.")
        return act

    async def _preview(self, request: Request) -> Response:
        """Show what an act would do, and a form that does it."""
        visit = self._visit(request)
        form = dict(request.query_params)
        act = self._act(visit, form)
        try:
            async with asyncio.timeout(_PLAN_SECONDS):
                plan = None if act.plan is None else await act.plan(visit.source.client, form)
        except TimeoutError:
            return self._failed(visit, ReadTooSlow(_TOO_MANY, hint=_FEWER))
        except Exception as error:
            return self._failed(visit, error)
        fields = {name: form[name] for name in act.fields if form.get(name)}
        facts = {"section": "", "act": act, "plan": plan, "fields": fields, "run": None}
        return self._page(visit, "act.html", facts, 200)

    async def _do(self, request: Request) -> Response:
        visit = self._visit(request)
        form = await self._form(request)
        act = self._act(visit, form)
        token = form.get("token", "")
        if (act.is_long or act.needs_token) and not token:
            raise HTTPException(400, "The token of the preview is missing.")
        who = getpass.getuser() if visit.user is None else visit.user.name
        with acting_as(f"{who} (console)"):
            if act.is_long:
                run = Run(act, whole_number(form.get("count", "")))
                doing = act.do(visit.source.client, form, token, run.progress)
                number = visit.source.runs.begin(run, doing)
                visit.source.forget()
                return RedirectResponse(visit.link("run", number=number), 303)
            try:
                result = await act.do(visit.source.client, form, token, lambda _: None)
            except Exception as error:
                return self._failed(visit, error)
            finally:
                visit.source.forget()
        undo = {name: form[name] for name in act.fields if form.get(name)}
        if isinstance(result, Done):
            result, undo = result
        facts = {
            "section": "",
            "act": act,
            "plan": None,
            "undo": undo,
            "result": result,
            "run": None,
            "back": _own_path(form.get("back", ""), visit.root),
        }
        return self._page(visit, "done.html", facts, 200)

    async def _run(self, request: Request) -> Response:
        """Show how far a long act is."""
        visit = self._visit(request)
        return self._page(visit, "run.html", {"section": "", **self._found_run(visit)}, 200)

    async def _stop(self, request: Request) -> Response:
        visit = self._visit(request)
        await self._form(request)
        found = self._found_run(visit)
        if not self._may(visit.user, found["run"].act.name):
            raise HTTPException(403, f"You may not {found['run'].act.permission} here.")
        found["run"].is_stopping = True
        return RedirectResponse(visit.link("run", number=found["number"]), 303)

    @staticmethod
    def _found_run(visit: _Visit) -> dict[str, Any]:
        number = whole_number(visit.request.query_params.get("number", ""))
        run = None if number is None else visit.source.runs.get(number)
        if run is None:
            raise HTTPException(404, "No such act runs, or it ended long ago.")
        return {"run": run, "number": number}

    @staticmethod
    async def _form(request: Request) -> dict[str, str]:
        """Return the fields of a form that a page of this console has sent.

        A browser names the site that sends a form, in ``Sec-Fetch-Site``, and in ``Origin`` if it
        is old. A form of another site, and one of which neither is known, is refused.
        """
        site = request.headers.get("sec-fetch-site")
        origin = request.headers.get("origin")
        if site is None and origin is not None:
            own = f"{request.url.scheme}://{request.headers.get('host', '')}"
            site = "same-origin" if origin == own else "cross-site"
        if site != "same-origin":
            raise HTTPException(403, "This form was not sent by a page of the console.")
        if request.headers.get("content-type", "").partition(";")[0] != _FORM_TYPE:
            raise HTTPException(415, "A form is expected.")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _FORM_BYTES_MAX:
                raise HTTPException(413, "The form is too large.")
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))

    def _failed(self, visit: _Visit, error: Exception) -> Response:
        """Return the page of an error; raise what is neither ours nor the database's."""
        known = error if isinstance(error, ForebayError) else refusal(error)
        if known is None:
            raise error
        title, status = next(
            (title, status) for sort, title, status in _TROUBLE if isinstance(known, sort)
        )
        return self._trouble(visit, known, title, status)

    def _trouble(self, visit: _Visit, error: ForebayError, title: str, status: int) -> Response:
        facts = {"title": title, "error": error, "section": ""}
        return self._page(visit, "trouble.html", facts, status)

    def _page(
        self, visit: _Visit, template: str, facts: Mapping[str, Any], status: int
    ) -> Response:
        text = self._templates.get_template(template).render(
            facts,
            link=visit.link,
            here=visit.here,
            query=visit.request.query_params,
            static=lambda name: f"{visit.root}/static/{_named(name)}",
            sources=list(self._sources),
            source=visit.source,
            user=visit.user,
            root=visit.root,
            may=lambda name: self._may(visit.user, name),
            acts=ACTS,
            filter_names=FILTER,
            destructive=DESTRUCTIVE,
            limit_names=LIMITS,
            default_columns=DEFAULT_COLUMNS,
            shown_on=shown_on,
            titled=titled,
            pages=[page for page in PAGES if page.title],
        )
        return HTMLResponse(text, status)

    async def _live(self, request: Request) -> Response:
        """Tell a browser whenever the numbers are new: the page then reads itself again."""
        source = self._source(request)
        if self._viewers >= _VIEWERS_MAX:
            raise HTTPException(503, "Too many browsers learn of changes at once.")

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
        visit = _Visit(request, next(iter(self._sources.values())), None)
        title = "Not here" if error.status_code == 404 else "Refused"
        return self._trouble(visit, ForebayError(str(error.detail)), title, error.status_code)


def _own_path(path: str, root: str) -> str:
    """Return a path of this console; empty for any other address."""
    is_own = path.startswith(f"{root}/") and not path.startswith(("//", "/\\"))
    return path if is_own and "\\" not in path else ""


def _query(values: Mapping[str, Any]) -> str:
    left = {name: value for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(left, doseq=True)}" if left else ""


@functools.cache
def _named(name: str) -> str:
    """Return the name of a static file with its checksum, so that a new version is fetched."""
    digest = hashlib.sha256((_STATIC / name).read_bytes()).hexdigest()[:12]
    return f"{name}?{digest}"
