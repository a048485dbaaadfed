"""``Drain``: what an application declares to send the jobs of a queue to a sink."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from forebay.app import require_jobs
from forebay.arguments.kinds import BATCH_SIZE_MAX, Kind, Kinds, OneHandler
from forebay.errors import ConfigError, InvalidJob, shown
from forebay.model import Job, checks
from forebay.model.doors import declaring_door
from forebay.policy.retry import RetryPolicy
from forebay.sending._audit import DrainAudit, audit
from forebay.sending._delivery import Delivery
from forebay.sending._service import QueueService
from forebay.sinks import Sink

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping, Sequence

    from forebay.app import App, Jobs

BATCH_SIZE_DEFAULT: Final = 500
BATCH_BYTES_DEFAULT: Final = 1_000_000
TIMEOUT_SECONDS_DEFAULT: Final = 30.0


class Drain(QueueService):
    """Sends every job of a queue to a sink instead of running a handler.

    Each drain reads its queue as a consumer group, so several drains can send the same jobs to
    several sinks, and none waits for another. Any number of processes may run the same drain. A
    message is sent at least once and under the same id each time. With ordering keys, messages of a
    key are sent one at a time, in order; without them, one process with ``concurrency`` 1 sends in
    the order of its claims.

    While the sink is unavailable, the drain claims nothing, except for one message now and then as
    a trial. No attempt is used. A message that the sink refuses is retried by the retry policy, and
    becomes a dead letter after the last attempt.

    Args:
        app: the application; ``forebay drain`` and ``forebay worker`` find the drain there.
        name: of the drain.
        sink: where to send.
        queue: the queue whose jobs are sent, of any kind.
        group: the consumer group of the queue.
        batch_size: the most messages in one call of the sink, 1 to 10,000.
        batch_bytes: the most bytes of bodies in one call, except for a single larger message.
        linger: after a claim that found fewer messages than a call takes, wait at most this time,
            up to one second, for fuller calls.
        concurrency: how many calls run at once in one process, 1 to 100.
        timeout: how long one call may take; then the sink counts as unavailable.
        retry: the retry policy of refused messages. Default: the settings.
        holds_key: a dead letter holds its ordering key: later messages of the key wait until it is
            redriven or skipped. Otherwise they overtake it.
        verify: whether to read each message back before its job is done. True: at once; a duration:
            after this time. A message that the sink accepted and does not have is sent again under
            a new id, and counted as lost.
        keep_proofs: for how long the database keeps what the sink answered about each message, so
            that ``audit`` can read it back; None: not at all.

    Durations are seconds or timedeltas.

    Raises:
        ConfigError: an argument is refused, or the app already has a drain of this name.

    Attributes:
        name: of the drain.
        sink: where it sends.
        queue: its queue.
        group: its consumer group.
        concurrency: how many calls run at once in one process.
        keeps_proofs: whether it can be audited.
        delivery: sends the messages in this process, and counts them.
    """

    @declaring_door
    def __init__(
        self,
        app: Jobs,
        name: str,
        *,
        sink: Sink,
        queue: str,
        group: str = "default",
        batch_size: int = BATCH_SIZE_DEFAULT,
        batch_bytes: int = BATCH_BYTES_DEFAULT,
        linger: float | timedelta | None = None,
        concurrency: int = 1,
        timeout: float | timedelta = TIMEOUT_SECONDS_DEFAULT,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        holds_key: bool = False,
        verify: bool | float | timedelta = False,
        keep_proofs: float | timedelta | None = None,
    ) -> None:
        where = f"drain {name}"
        require_jobs(app)
        if not isinstance(sink, Sink):
            raise ConfigError(where, f"has no sink, but {shown(sink)}", hint="See forebay.sinks.")
        try:
            name = checks.checked_name(name, "name")
            group = checks.checked_name(group, "group")
        except InvalidJob as error:
            raise ConfigError(where, error.message, hint=error.hint) from None
        for field, value, most in (
            ("batch_size", batch_size, BATCH_SIZE_MAX),
            ("batch_bytes", batch_bytes, 100_000_000),
            ("concurrency", concurrency, 100),
        ):
            number: object = value
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
                raise ConfigError(
                    where, f"{field} is {shown(value)}, not an integer within 1 to {most}"
                )
        self.name = name
        self.sink = sink
        self.queue = checks.plain_text(queue)
        seconds = _seconds(where, "timeout", timeout)
        verify_seconds = _verify_seconds(where, sink, verify)
        if keep_proofs is not None:
            _require_verifiable(where, sink, "keep_proofs")
        self.keeps_proofs = keep_proofs is not None
        # A batch may need several calls, and each message several more if it is lost.
        calls = 6 + -(-batch_size // min(batch_size, sink.messages_max))
        self.delivery = Delivery(
            name,
            sink,
            batch_size=min(batch_size, sink.messages_max),
            batch_bytes=min(batch_bytes, sink.bytes_max),
            call_seconds=seconds,
            verify_seconds=verify_seconds,
            keeps_proofs=self.keeps_proofs,
        )
        deliver = self.delivery.deliver

        async def send(jobs: list[Job]) -> Any:
            return await deliver(jobs)

        kind = Kind.declare(
            send,
            name=f"drain.{name}",
            queue=self.queue,
            batch_size=batch_size,
            linger=linger,
            retry=retry,
            holds_key=holds_key,
            keep_result=keep_proofs,
            # The calls of a batch have their own timeouts; this one ends what does not obey them.
            hard_timeout_seconds=min(86_400.0, calls * (seconds + (verify_seconds or 0)) + 60),
        )
        super().__init__(
            kind,
            title=f"drain {name} to {sink.place} ({sink.type})",
            concurrency=concurrency,
            group=group,
            intake=self.delivery,
        )
        self._has_retry = retry is not None
        self._handler: OneHandler | None = None
        self._app = app
        app._internals.add_drain(self)

    def __repr__(self) -> str:
        return f"<drain {self.name!r} of queue {self.queue!r} to {self.sink.place}>"

    async def audit(self, dsn: str, *, repair: bool = True) -> DrainAudit:
        """Read back every message whose proof is kept, and send again what the far side has lost
        since.

        A lost message is enqueued again as a new job of the drain's group, with a new id, at the
        end of its ordering key. Drains may run meanwhile. The audit uses the sink of this object:
        run it in a process that does not run the drain.

        Args:
            dsn: the database.
            repair: whether to send again; False only counts.

        Raises:
            ConfigError: the drain keeps no proofs.
            SinkUnavailable: the far side cannot be read now.
            GroupNotFound: no drain has served the queue yet.
            DatabaseUnavailable: no connection, or it was lost.
        """
        if not self.keeps_proofs:
            raise ConfigError(
                f"drain {self.name}",
                "keeps no proofs to audit",
                hint="Declare it with keep_proofs=timedelta(days=1).",
            )
        return await audit(dsn, self.name, self.queue, self.group, self.sink, repair=repair)

    # --- what a worker needs ---

    @property
    def kinds(self) -> Kinds:
        """One handler for the jobs of every kind."""
        if self._handler is None:
            self._handler = OneHandler(self._with_retry())
        return self._handler

    def follow(self, found: Mapping[str, Any]) -> None:
        """Take the settings of the database, unless it was declared with retries."""
        self._app._internals.follow(found)
        if self._handler is not None:
            self._handler.renew(self._with_retry())

    def _with_retry(self) -> Kind:
        return self._kind if self._has_retry else self._app._internals.with_retry(self._kind)

    @property
    def listeners(self) -> Mapping[str, Sequence[Callable[[Any], Any]]]:
        """The listeners of the app."""
        return self._app._internals.listeners

    async def open_resources(self, stack: contextlib.AsyncExitStack) -> Mapping[str, Any]:
        """Close the sink at the end; it is opened before the first message."""
        stack.push_async_callback(self.sink.close)
        return {}


def _seconds(where: str, field: str, value: object) -> float:
    try:
        seconds = checks.checked_seconds(value, field)
    except InvalidJob as error:
        raise ConfigError(where, error.message) from None
    if not 0 < seconds <= 3600:
        raise ConfigError(where, f"{field} is {shown(value)}, not above 0 and at most an hour")
    return seconds


def _verify_seconds(where: str, sink: Sink, verify: bool | float | timedelta) -> float | None:
    if verify is False:
        return None
    _require_verifiable(where, sink, "verify")
    return 0.0 if verify is True else _seconds(where, "verify", verify)


def _require_verifiable(where: str, sink: Sink, option: str) -> None:
    if not sink.can_verify:
        raise ConfigError(
            where,
            f"cannot verify: what a sink of type {sink.type} accepted cannot be read back",
            hint=f"Leave {option} out, or send to a log such as a stream.",
        )


def drains_of(app: App) -> dict[str, Drain]:
    """Return the drains that an application declares, by name."""
    return cast("dict[str, Drain]", app._internals.drains)
