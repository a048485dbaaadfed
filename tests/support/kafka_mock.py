"""The mock cluster of librdkafka: brokers within this process, which refuse what a test says."""

import ctypes
from pathlib import Path
from typing import Self

import confluent_kafka

_PRODUCER = 0

#: Numbers of requests in the protocol of Kafka.
PRODUCE, FETCH, METADATA = 0, 1, 3


class KafkaMock:
    """A cluster of one broker, until the end of the block.

    Attributes:
        address: host:port of the broker.
    """

    def __init__(self) -> None:
        folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
        self._library = ctypes.CDLL(str(next(folder.glob("librdkafka-*"))))
        for name, result, *arguments in (
            ("rd_kafka_conf_new", ctypes.c_void_p),
            ("rd_kafka_conf_set", ctypes.c_int, ctypes.c_void_p, *[ctypes.c_char_p] * 3,
                ctypes.c_size_t),
            ("rd_kafka_new", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p,
                ctypes.c_size_t),
            ("rd_kafka_destroy", None, ctypes.c_void_p),
            ("rd_kafka_mock_cluster_new", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
            ("rd_kafka_mock_cluster_destroy", None, ctypes.c_void_p),
            ("rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p, ctypes.c_void_p),
            ("rd_kafka_mock_topic_create", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p,
                ctypes.c_int, ctypes.c_int),
            ("rd_kafka_mock_topic_set_error", None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int),
            ("rd_kafka_mock_broker_set_host_port", ctypes.c_int, ctypes.c_void_p, ctypes.c_int32,
                ctypes.c_char_p, ctypes.c_int),
            ("rd_kafka_mock_partition_delete_records", ctypes.c_int, ctypes.c_void_p,
                ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64),
        ):  # fmt: skip
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        conf = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(conf, b"log_level", b"0", None, 0)
        self._rk = self._library.rd_kafka_new(_PRODUCER, conf, None, 0)
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._rk, 1)
        self.address = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._rk)

    def create(self, topic: str, partitions: int = 1) -> None:
        """Make a topic."""
        self._check(
            self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)
        )

    def fail_topic(self, topic: str, error: int) -> None:
        """Answer questions about a topic with an error."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), error)

    def refuse(self, request: int, *errors: int) -> None:
        """Answer the next requests of a kind with errors, in turn."""
        function = self._library.rd_kafka_mock_push_request_errors_array
        function.argtypes = [
            ctypes.c_void_p, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)
        ]  # fmt: skip
        function.restype = None
        function(self._cluster, request, len(errors), (ctypes.c_int * len(errors))(*errors))

    def advertise(self, address: str) -> None:
        """Tell clients another address of the broker."""
        host, _, port = address.rpartition(":")
        self._check(
            self._library.rd_kafka_mock_broker_set_host_port(
                self._cluster, 1, host.encode(), int(port)
            )
        )

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before an offset, as retention does."""
        self._check(
            self._library.rd_kafka_mock_partition_delete_records(
                self._cluster, topic.encode(), partition, offset
            )
        )

    @staticmethod
    def _check(error: int) -> None:
        assert error == 0, confluent_kafka.KafkaError(error)
