"""Reads records of Kafka at their offsets, to learn which of them are there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.sinks._contract import Sent

#: A topic and the number of a partition.
Partition: TypeAlias = tuple[str, int]

#: The offsets to read by partition, each with the places of its messages in the call.
Wanted: TypeAlias = "dict[Partition, dict[int, list[int]]]"

#: Over a larger gap between two wanted offsets, the reader does not read what is between them.
_GAP_MAX: Final = 2_000

#: How long one look at what has arrived waits.
_LOOK_SECONDS: Final = 0.2

_AT_THE_END: Final = ("_PARTITION_EOF",)
_OUTSIDE: Final = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")

#: The value of librdkafka for an unknown offset.
_UNKNOWN: Final = -1001


def codes(kafka: Any, *names: str) -> frozenset[int]:
    """Return the codes of errors of librdkafka by their names."""
    return frozenset(getattr(kafka.KafkaError, name) for name in names)


class Reader:
    """Reads one set of offsets, and writes what it learnt into ``results``. Used once, in a thread.

    A loss is proved by the record of another message at the offset, or by two statements that the
    log ends before it: of the answer to the read, and of the look-up of the last offset. Either
    alone may be late: the first after a change of the leader, when the new one does not know yet
    what all replicas have.

    Args:
        kafka: the client library.
        connection: its options for the connection.
        wanted: what to read.
        sent: the messages.
        results: one entry for each message; entries that stay None are unknown.
    """

    def __init__(
        self,
        kafka: Any,
        connection: dict[str, Any],
        wanted: Wanted,
        sent: Sequence[Sent],
        results: list[bool | None],
    ) -> None:
        self._kafka = kafka
        self._at_the_end = codes(kafka, *_AT_THE_END)
        self._outside = codes(kafka, *_OUTSIDE)
        self._connection = connection
        self._pending = {partition: sorted(offsets) for partition, offsets in wanted.items()}
        self._wanted = wanted
        self._sent = sent
        self._results = results
        self._consumer: Any = None
        self._deadline = 0.0
        self._is_stopped = False

    def stop(self) -> None:
        """End a read that is under way, soon; from another thread."""
        self._is_stopped = True

    def read(self, seconds: float) -> None:
        """Read until everything is known. Blocks.

        Raises:
            KafkaException: brokers refuse it, or cannot be reached.
            TimeoutError: it took longer.
        """
        self._deadline = time.monotonic() + seconds
        self._consumer = self._kafka.Consumer({
            **self._connection,
            # It joins no group; the library wants a name.
            "group.id": "forebay-verify",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # Open transactions of other producers hide no record.
            "isolation.level": "read_uncommitted",
            "queued.min.messages": 1000,
            "fetch.wait.max.ms": 100,
        })  # fmt: skip
        try:
            self._consumer.assign(
                [
                    self._position(partition, offsets[0])
                    for partition, offsets in self._pending.items()
                ]
            )
            while self._pending:
                self._look()
        finally:
            self._consumer.close()

    def _look(self) -> None:
        if self._is_stopped or time.monotonic() > self._deadline:
            raise TimeoutError
        records = self._consumer.consume(1000, _LOOK_SECONDS)
        for record in records:
            partition = (record.topic(), record.partition())
            if partition in self._pending:
                self._take(partition, record)
        if not records:
            for partition in list(self._pending):
                _, end = self._consumer.get_watermark_offsets(
                    self._position(partition), cached=True
                )
                # Some brokers answer a read behind the end without an error.
                self._decide_behind(partition, end)

    def _take(self, partition: Partition, record: Any) -> None:
        error, offset = record.error(), record.offset()
        if error is None:
            self._decide(partition, offset, _id(record))
        elif error.code() in self._at_the_end:
            self._decide_behind(partition, offset)
        elif error.code() in self._outside:
            self._decide_outside(partition)
        elif not error.retriable():
            raise self._kafka.KafkaException(error)

    def _decide(self, partition: Partition, offset: int, message_id: str | None) -> None:
        """A record was read: everything up to its offset is known, and what was passed over does
        not exist any more.
        """
        pending = self._pending[partition]
        while pending and pending[0] <= offset:
            first = pending.pop(0)
            if first == offset:
                for place in self._wanted[partition][first]:
                    self._results[place] = self._sent[place].message.id == message_id
        if not pending:
            self._finish(partition)
        elif pending[0] - offset > _GAP_MAX:
            self._consumer.seek(self._position(partition, pending[0]))

    def _decide_behind(self, partition: Partition, end: int) -> None:
        """The answer to a read said where the log ends."""
        pending = self._pending.get(partition)
        if pending and end != _UNKNOWN and end <= pending[0]:
            self._decide_outside(partition)

    def _decide_outside(self, partition: Partition) -> None:
        """A read said that the first pending offset is not within the log: ask for its bounds."""
        low, high = self._consumer.get_watermark_offsets(
            self._position(partition), max(0.1, self._deadline - time.monotonic())
        )
        pending = self._pending[partition]
        while pending and (pending[0] < low or pending[0] >= high):
            offset = pending.pop(0)
            if offset >= high:
                for place in self._wanted[partition][offset]:
                    self._results[place] = False
        if not pending:
            self._finish(partition)
        else:
            # A seek is refused for a partition whose read failed.
            self._consumer.incremental_unassign([self._position(partition)])
            self._consumer.incremental_assign([self._position(partition, pending[0])])

    def _finish(self, partition: Partition) -> None:
        del self._pending[partition]
        self._consumer.incremental_unassign([self._position(partition)])

    def _position(self, partition: Partition, offset: int = _UNKNOWN) -> Any:
        return self._kafka.TopicPartition(*partition, offset)


def _id(record: Any) -> str | None:
    for name, value in record.headers() or ():
        if name == "forebay-id" and value is not None:
            return str(value, "utf-8", "replace")
    return None
