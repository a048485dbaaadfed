"""What a drain gives to a sink, and what a sink answers.

A sink sends messages to something outside the database: a broker, another task queue, an HTTP
endpoint. It is called with a batch and answers about each message. It keeps no state about
messages: whatever it did not confirm is sent again, under the same id.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import msgspec

from forebay._dataclass import dataclass
from forebay.errors import SinkUnavailable
from forebay.model.checks import PRIORITY_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

#: Between the id of a message and its generation.
_GENERATION_MARK: Final = "~"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A job on its way to a sink.

    Attributes:
        id: the same on every try, so that receivers can recognise repetitions. It contains the job
            id, the time at which the job was enqueued and the group. After a proved loss it also
            ends with ``~`` and the generation, so that a broker that drops repetitions does not
            drop this one.
        generation: the number of proved losses of this message before.
        job_id: the id of the job.
        kind: the kind of the job.
        queue: the queue of the job.
        body: the arguments of the job as JSON, UTF-8.
        headers: the headers of the job.
        ordering_key: messages with the same key are sent in order, one at a time; None for no
            order.
        correlation_id: the correlation id of the job.
        tag: the tag of the job.
        priority: the priority of the job, for places that have the same ones.
        enqueued_at: when the job was enqueued.
        expires_at: from this instant on the message is not sent.
        attempt: the number of this try, from 1. Tries while the sink is unavailable do not count.
        url_suffix: of the message of an endpoint that lets it: a path below the address. A sink
            that uses it checks it.
        timeout: of the message of an endpoint that lets it: seconds for its request; None: those of
            the sink.
    """

    id: str
    job_id: int
    kind: str
    queue: str
    body: bytes
    enqueued_at: datetime
    generation: int = 0
    headers: dict[str, str] = {}
    ordering_key: str | None = None
    correlation_id: str | None = None
    tag: str | None = None
    priority: int = PRIORITY_DEFAULT
    expires_at: datetime | None = None
    attempt: int = 1
    url_suffix: str | None = None
    timeout: float | None = None

    @property
    def base_id(self) -> str:
        """The id without the generation."""
        return self.id.partition(_GENERATION_MARK)[0] if self.generation else self.id

    def after_loss(self) -> Message:
        """Return the message with the next generation: the far side accepted this one and does
        not have it.

        >>> from datetime import datetime, UTC
        >>> now = datetime.now(UTC)
        >>> job = {"job_id": 7, "kind": "k", "queue": "q", "body": b"{}"}
        >>> one = Message(id="7-5f-default", enqueued_at=now, **job)
        >>> one.after_loss().id, one.after_loss().after_loss().id
        ('7-5f-default~1', '7-5f-default~2')
        """
        generation = self.generation + 1
        return msgspec.structs.replace(
            self, id=f"{self.base_id}{_GENERATION_MARK}{generation}", generation=generation
        )

    def metadata(self) -> dict[str, str]:
        """Return what a receiver may need beside the body, by name: the headers of the job, then
        id, kind and the like.

        The names of the library begin with ``forebay-`` and replace headers of the same name.
        """
        found = dict(self.headers)
        found["forebay-id"] = self.id
        found["forebay-kind"] = self.kind
        found["forebay-enqueued-at"] = self.enqueued_at.isoformat()
        if self.ordering_key is not None:
            found["forebay-ordering-key"] = self.ordering_key
        if self.correlation_id is not None:
            found["forebay-correlation-id"] = self.correlation_id
        return found


@dataclass(frozen=True, slots=True)
class Accepted:
    """The far side has the message, and said so.

    Attributes:
        proof: where the far side has it, if it told: an offset, a sequence number, an entry id.
            ``Sink.seen`` reads it back.
        is_duplicate: the far side had it already, from an earlier try.
        response: what the far side answered, for endpoints that keep responses; None if there is
            nothing to keep but the proof.
        details: more of it for them, by name: values with a JSON form. None: nothing.
    """

    proof: str | None = None
    is_duplicate: bool = False
    response: str | None = field(default=None, compare=False)
    details: Mapping[str, Any] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TryLater:
    """The far side refused this message now and may take it later. It counts as a failed attempt.

    Attributes:
        reason: for the error history of the job.
        after: seconds until the next try, if the far side told; None: the retry policy decides.
        throttles: the far side asked for ``after`` because of its load: an endpoint gets no other
            message before either.
    """

    reason: str
    after: float | None = None
    throttles: bool = False


class Refused(SinkUnavailable):
    """This process may not send there: its own settings do not allow it.

    Nothing was sent, and no attempt is used.
    """


@dataclass(frozen=True, slots=True)
class Rejected:
    """The far side will never take this message. It becomes a dead letter.

    Attributes:
        reason: for the error history of the job.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class EndpointGone:
    """The far side wants no messages any more, such as an HTTP endpoint that answers 410.

    The message becomes a dead letter.

    Attributes:
        reason: for the error history of the job.
    """

    reason: str


#: What a sink answers about one message. ``SinkUnavailable`` as an answer: this message is sent
#: again later without using an attempt, while others of the call were accepted.
Answer: TypeAlias = Accepted | TryLater | Rejected | EndpointGone | SinkUnavailable


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that the far side accepted, with the proof that it gave."""

    message: Message
    proof: str | None


class FromRow(Enum):
    """Why an endpoint, which others than the owner of the process write, may set a parameter."""

    PLAIN = "a name, number or choice: what is written at a place that is allowed, and how fast"
    ADDRESS = "an address over a network, without options, whose hosts the deliverer lists"
    CHECKED_ADDRESS = "an address of which each connection is checked: public, or listed"
    SECRETS = "texts; a reference names a variable or file that the deliverer lists"
    FILE = "the path of a file that is used and not sent, in a folder that the deliverer lists"
    ANSWERS = "a choice to show answers, which are those of public addresses only"


class Sink:
    """A place outside the database to which a drain sends messages.

    A subclass implements ``send``, and ``open`` and ``close`` if it holds a connection. All methods
    of one sink run on one event loop, ``send`` up to as many times at once as the drain has
    ``concurrency``. A drain calls ``open`` before the first ``send``, and again after
    ``SinkUnavailable``; so ``open`` on an open sink must drop what is broken and connect again.

    Arguments of the constructor are the configuration; the constructor checks them and connects to
    nothing.

    Attributes:
        type: the name of the sink in configurations.
        can_verify: whether ``seen`` can tell what arrived.
        messages_max: the most messages in one call of ``send``.
        bytes_max: the most bytes of bodies in one call of ``send``, except for a single larger
            message.
        is_single: a call with several messages sends each by itself, so that several calls with one
            message each are as good.
        call_seconds: how long a deliverer waits for one call of ``send``, 30 by default. A drain
            has its own timeout.
        row_rules: the parameters that an endpoint may set, and why that is harmless. An endpoint
            cannot set others.
        row_needs: parameters that the process must give, so that an endpoint can have the sink.
    """

    type: ClassVar[str] = ""
    can_verify: ClassVar[bool] = False
    messages_max: ClassVar[int] = 10_000
    bytes_max: ClassVar[int] = 4_000_000
    is_single: bool = False
    call_seconds: float = 30.0
    row_rules: ClassVar[Mapping[str, FromRow]] = {}
    row_needs: ClassVar[Sequence[str]] = ()

    @classmethod
    def finds_login(cls, config: Mapping[str, Any]) -> bool:
        """Return whether these settings make the sink log in with what it finds in the environment
        of the process, at an address that a row names. Then the deliverer must list the host.
        """
        del config
        return False

    @property
    def place(self) -> str:
        """Where it sends to, for messages and logs: without passwords."""
        return self.type

    async def open(self) -> None:
        """Connect, and check that what the configuration names exists.

        Raises:
            SinkUnavailable: it cannot send now; also for a refused login or a missing exchange,
                which an operator can mend.
        """

    async def send(self, messages: Sequence[Message]) -> Sequence[Answer]:
        """Send messages, and return an answer about each one, in their order.

        Messages with the same ordering key are never in one call.

        Raises:
            SinkUnavailable: the far side cannot be used now, whatever the message. All messages of
                the call are sent again later, also those that arrived, and no attempt is used.
        """
        raise NotImplementedError

    def refusal_of(self, message: Message) -> str | None:
        """Return why this sink will never send a message with a suffix or a timeout; None: it
        will.

        A deliverer asks before it sends a message that has one of them, so that such a message is a
        dead letter and counts neither as an answer nor as a failure of the endpoint. A sink that
        takes them overrides this.
        """
        del message
        return f"the sink {self.type} takes no suffix of the address and no timeout of a message"

    async def seen(self, sent: Sequence[Sent]) -> Sequence[bool | None]:
        """Read back: return for each message whether the far side has it.

        The result is None if that cannot be known.

        False means a proved loss: the message is sent again, with the next generation. A message
        that was consumed and removed is no loss; answer None where both look the same.

        Raises:
            SinkUnavailable: the far side cannot be read now.
        """
        return [None] * len(sent)

    async def close(self) -> None:
        """Close the connections; the sink may be opened again."""

    def _unavailable(self, problem: str | BaseException) -> SinkUnavailable:
        """Return the error for a problem at its place.

        An exception without a text is named by its type.
        """
        text = problem if isinstance(problem, str) else str(problem) or type(problem).__name__
        return SinkUnavailable(f"{self.place}: {text}")


def message_id(job_id: int, enqueued_at: datetime, group: str) -> str:
    """Return the id of a message: the same on every try, and of no other job.

    A job id alone is not enough: after a server lost its last commits, an id may be given out
    again.

    >>> from datetime import datetime, UTC
    >>> message_id(7, datetime(2026, 1, 2, tzinfo=UTC), "default")
    '7-6475efd0fe000-default'
    """
    micros = round(enqueued_at.timestamp() * 1_000_000)
    return f"{job_id}-{micros:x}-{group}"
