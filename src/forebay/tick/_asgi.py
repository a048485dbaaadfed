"""A route that runs a tick, for a web application or a platform that calls one by HTTP."""

from __future__ import annotations

import asyncio
import hmac
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from forebay._asgi import respond, serve
from forebay.app import App, require_app
from forebay.db.own import own_transaction_async
from forebay.errors import ConfigError, DatabaseUnavailable, ForeignCluster, SchemaError
from forebay.model.doors import declaring_door
from forebay.ops.locks import try_tick_lock
from forebay.tick.ticking import BUDGET_SECONDS_DEFAULT, as_json, checked_budget, tick

if TYPE_CHECKING:
    from forebay._asgi import Message, Receive, Send
    from forebay.tick.ticking import Tick

_SECRET_CHARACTERS_MIN: Final = 16


@declaring_door
def asgi(
    app: App,
    *,
    secret: str,
    budget: float | timedelta = BUDGET_SECONDS_DEFAULT,
    endpoints: bool = False,
) -> Route:
    """Return an ASGI application that runs a tick for each POST with the secret.

    The request has the header ``Authorization: Bearer SECRET``, and may ask for a shorter budget:
    ``?budget=5``. The answer is JSON: 200 with the fields of ``Tick``; 401 without the secret; 405
    for another method; 409 while another request runs a tick of this app, in any process; 503 if
    the database cannot be used.

    Args:
        app: the application.
        secret: what a caller must know, at least 16 characters.
        budget: the longest budget, see ``run``. Stay below the time limit of the platform by some
            seconds.
        endpoints: see ``run``.

    Raises:
        ConfigError: an argument is refused.
    """
    return Route(app, secret, checked_budget(budget), endpoints=endpoints)


class Route:
    """A route as an ASGI application; ``asgi()`` makes it. Mount it under any path."""

    def __init__(self, app: App, secret: str, budget: float, *, endpoints: bool) -> None:
        require_app(app)
        if len(secret) < _SECRET_CHARACTERS_MIN:
            raise ConfigError(
                "secret",
                f"has {len(secret)} characters, fewer than {_SECRET_CHARACTERS_MIN}",
                hint="Make one: python -c 'import secrets; print(secrets.token_urlsafe())'",
            )
        self._app = app
        self._wanted = f"Bearer {secret}".encode()
        self._budget = budget
        self._endpoints = endpoints

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def answer() -> None:
            await respond(send, *await self._answer(scope))

        await serve(scope, receive, send, answer)

    async def _answer(self, scope: Message) -> tuple[int, dict[str, Any], dict[str, str]]:
        if scope["method"] != "POST":
            return 405, {"error": "POST only"}, {"allow": "POST"}
        given = b"".join(value for name, value in scope["headers"] if name == b"authorization")
        if not hmac.compare_digest(given, self._wanted):
            return 401, {"error": "no or wrong secret"}, {"www-authenticate": "Bearer"}
        try:
            budget = self._asked(scope.get("query_string", b""))
        except ConfigError as error:
            return 400, {"error": error.message}, {}
        try:
            found = await self._tick(budget)
        except (DatabaseUnavailable, SchemaError, ForeignCluster) as error:
            return 503, {"error": error.message}, {"retry-after": "5"}
        if found is None:
            return 409, {"status": "busy"}, {"retry-after": str(round(self._budget))}
        return 200, as_json(found), {}

    def _asked(self, query: bytes) -> float:
        asked = parse_qs(query.decode("ascii", "replace")).get("budget")
        if asked is None:
            return self._budget
        try:
            seconds = float(asked[-1])
        except ValueError:
            raise ConfigError("budget", "is not a number of seconds") from None
        return min(checked_budget(seconds), self._budget)

    async def _tick(self, budget: float) -> Tick | None:
        """Run a tick while this transaction holds the lock; None: another one does.

        The lock belongs to a transaction, so it is gone with the connection, and a pooler keeps it.
        The transaction reads and writes nothing: it holds back no clean-up.
        """
        async with own_transaction_async(self._app.dsn) as call:
            if not await call(try_tick_lock(self._app.name)):
                return None
            running = asyncio.create_task(tick(self._app, budget=budget, endpoints=self._endpoints))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                running.cancel()
                await asyncio.wait([running])
                raise
