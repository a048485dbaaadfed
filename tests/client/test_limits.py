"""Limits of queues from Python."""

import psycopg
import pytest

import forebay
from forebay.errors import QueueFull, error_from_sqlstate


def test_a_full_queue_raises_an_error_with_its_numbers(database):
    """
    QueueFull may be tried again; it knows the queue, how many wait and how many may.
    """
    client = forebay.Client(database)
    assert client.limit_queue("mail", 2) is None
    client.enqueue_now("send", queue="mail")
    client.enqueue_now("send", queue="mail")
    with pytest.raises(QueueFull) as caught:
        client.enqueue_now("send", queue="mail")
    error = caught.value
    assert (error.queue, error.waiting, error.limit, error.retryable) == ("mail", 2, 2, True)
    with psycopg.connect(database) as conn, pytest.raises(QueueFull):
        client.enqueue(conn, "send", queue="mail")
    assert client.limit_queue("mail", None) == 2
    client.enqueue_now("send", queue="mail")


def test_what_else_postgresql_says_with_that_sqlstate_is_not_ours():
    """
    53400 is also said of temporary files.
    """
    said = "temporary file size exceeds temp_file_limit (1kB)"
    assert error_from_sqlstate("53400", said) is None
