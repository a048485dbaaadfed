"""What the ASGI applications of this library share: types of messages, and short answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


async def respond(send: Send, status: int, answer: object, headers: Mapping[str, str]) -> None:
    """Send a whole answer as JSON."""
    body = json.dumps(answer).encode()
    given = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        **headers,
    }
    await send({"type": "http.response.start", "status": status, "headers": encoded(given)})
    await send({"type": "http.response.body", "body": body})


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers as ASGI has them."""
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def serve(
    scope: Message, receive: Receive, send: Send, answer: Callable[[], Awaitable[None]]
) -> None:
    """Answer what a server sends to an application that answers requests and nothing else."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
    elif scope["type"] == "http":
        await answer()
    elif scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})


async def _live(receive: Receive, send: Send) -> None:
    """Answer the messages about the life of a server that serves nothing else."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
