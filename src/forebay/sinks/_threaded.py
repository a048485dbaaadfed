"""Sinks whose client library blocks: each call runs in a thread, on a client that no other call
uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forebay.errors import ConfigError, SinkUnavailable, shown
from forebay.sinks._contract import Answer, Message, Rejected, Sink
from forebay.sinks._support import call_in_thread, checked_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: How long a client waits for an answer of its server before its thread gives up, in seconds. The
#: drain gives up earlier.
ANSWER_SECONDS: Final = 60.0


class ThreadedSink(Sink):
    """A sink of a blocking client.

    Owns the clients that no call uses at the moment. A client returns there only after a call that
    succeeded as a whole; after an error or a cancellation it is ended, so that no later call can
    take an answer that was meant for an earlier one. A call that hangs keeps its thread and its
    client, and delays nothing else.
    """

    def __init__(self) -> None:
        self._idle: list[Any] = []
        #: Rises with ``close``: clients of calls that began before are ended after the call.
        self._closings = 0

    # --- for subclasses: in a thread ---

    def _connect(self) -> Any:
        """Return a client that has reached its server."""
        raise NotImplementedError

    def _deliver(self, client: Any, messages: Sequence[Message]) -> list[Answer]:
        """Send messages, and return the answers."""
        raise NotImplementedError

    def _disconnect(self, client: Any) -> None:
        """End a client that no call uses."""
        raise NotImplementedError

    def _interrupt(self, client: Any) -> None:
        """Make the call that uses a client fail soon.

        It must not close a descriptor that the call waits for.
        """

    def _is_usable(self, client: Any, answers: Sequence[Answer]) -> bool:
        """Return whether a client may serve another call, after these answers of the last one; on
        the loop, without waiting.
        """
        del client
        return not any(isinstance(answer, SinkUnavailable) for answer in answers)

    def _as_unavailable(self, error: Exception) -> SinkUnavailable | None:
        """Return what an error of the client means; None: it is a defect."""
        raise NotImplementedError

    # --- the contract ---

    async def open(self) -> None:
        """Connect and log in."""
        await self.close()
        closings = self._closings
        client = await self._connected()
        self._put_back(client, closings)

    async def send(self, messages: Sequence[Message]) -> list[Answer]:
        """Send the messages, in one thread. A payload that is no JSON object is rejected: a task
        takes arguments by name.
        """
        fit = [message for message in messages if message.body.startswith(b"{")]
        if len(fit) < len(messages):
            found = iter(await self.send(fit))
            unfit = Rejected("the payload is no JSON object, and a task takes arguments by name")
            return [next(found) if message.body.startswith(b"{") else unfit for message in messages]
        if not messages:
            return []
        closings = self._closings
        client = self._idle.pop() if self._idle else await self._connected()
        while not self._is_usable(client, ()):
            self._end(client)
            client = self._idle.pop() if self._idle else await self._connected()
        answers: list[Answer] = await self._in_thread(
            lambda: (client, self._guarded(lambda: self._deliver(client, messages))), client
        )
        if self._is_usable(client, answers):
            self._put_back(client, closings)
        else:
            self._end(client)
        return answers

    async def close(self) -> None:
        """End the clients that no call uses; those of calls under way end after them."""
        self._closings += 1
        clients, self._idle = self._idle, []
        for client in clients:
            await call_in_thread(lambda client=client: self._quietly_end(client), name=self._name)  # type: ignore[misc]

    # --- clients ---

    @property
    def _name(self) -> str:
        return f"forebay-sink-{self.type}"

    async def _connected(self) -> Any:
        def connect() -> tuple[Any, Any]:
            client = self._guarded(self._connect)
            return client, client

        return await self._in_thread(connect, None)

    async def _in_thread(self, function: Callable[[], tuple[Any, Any]], client: Any) -> Any:
        """Call a function, which returns the client that it used and a result.

        After an error the client is ended.
        """
        call = _Call(self, function, client)
        try:
            return await call_in_thread(call.run, name=self._name)
        except asyncio.CancelledError:
            call.abandon()
            raise

    def _guarded(self, call: Any) -> Any:
        try:
            return call()
        except SinkUnavailable:
            raise
        except Exception as error:
            unavailable = self._as_unavailable(error)
            if unavailable is None:
                raise
            raise unavailable from error

    def _put_back(self, client: Any, closings: int) -> None:
        if closings == self._closings:
            self._idle.append(client)
        else:
            self._end(client)

    def _end(self, client: Any) -> None:
        """End a client in the background: its server may not answer."""
        threading.Thread(
            target=self._quietly_end, args=(client,), name=self._name, daemon=True
        ).start()

    def _quietly_end(self, client: Any) -> None:
        with contextlib.suppress(Exception):  # It is given up, whatever its state.
            self._disconnect(client)


class _Call:
    """A call in a thread, which its caller may give up at any time.

    A call that was given up ends the client in its thread.
    """

    def __init__(
        self, sink: ThreadedSink, function: Callable[[], tuple[Any, Any]], client: Any
    ) -> None:
        self._sink = sink
        self._function = function
        self._client = client
        self._lock = threading.Lock()
        self._is_abandoned = self._has_ended = False

    def run(self) -> Any:
        is_whole = False
        try:
            self._client, result = self._function()
            is_whole = True
            return result
        finally:
            with self._lock:
                self._has_ended = True
                is_needed = is_whole and not self._is_abandoned
            if not is_needed and self._client is not None:
                self._sink._quietly_end(self._client)  # noqa: SLF001  # a part of the sink

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = True
            has_ended = self._has_ended
        if self._client is None:
            return
        if has_ended:
            self._sink._end(self._client)  # noqa: SLF001
        else:
            with contextlib.suppress(Exception):
                self._sink._interrupt(self._client)  # noqa: SLF001


def interrupt_redis(pool: Any) -> None:
    """Wake the call that waits for an answer on a connection of a pool of redis-py.

    ``pool.disconnect()`` would close the descriptor too, which the waiting call may miss; then it
    waits for its timeout.
    """
    for connection in list(getattr(pool, "_in_use_connections", ())):
        shut(getattr(connection, "_sock", None))


def shut(sock: Any) -> None:
    """End the connection of a socket, if there is one, and leave its descriptor open."""
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def checked_tasks(sink: str, value: object) -> dict[str, str]:
    """Return a mapping of kinds to names of tasks.

    Raises:
        ConfigError: it is something else.
    """
    if value is None:
        return {}
    pairs = value.items() if isinstance(value, dict) else [(None, None)]
    if not all(
        isinstance(text, str) and text and text.isprintable() for pair in pairs for text in pair
    ):
        raise ConfigError(
            f"sink {sink}: tasks",
            f"is {shown(value)}, not a mapping of kinds to names of tasks",
            value=value,
        )
    return dict(pairs)


def checked_queue(sink: str, value: object, *, field: str = "queue") -> str:
    """Return the name of a queue, or of something like it.

    Raises:
        ConfigError: it is not a printable text, or has spaces.
    """
    name = checked_name(sink, field, value)
    if " " in name:
        raise ConfigError(
            f"sink {sink}: {field}", f"is {shown(name)}, which has spaces", value=name
        )
    return name


def task_of(tasks: Mapping[str, str], message: Message) -> str:
    """Return the name of the task that runs a message: that of its kind, or the kind itself."""
    return tasks.get(message.kind, message.kind)


def arguments_of(message: Message) -> dict[str, Any]:
    """Return the arguments of the job, which are the keyword arguments of the task."""
    found: dict[str, Any] = msgspec.json.decode(message.body)
    return found
