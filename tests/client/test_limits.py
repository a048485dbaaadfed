"""Limits of queues from Python."""

import psycopg
import pytest

import forebay
from forebay.errors import InvalidJob, QueueFull, error_from_sqlstate
from forebay.model.limits import Limits


def test_a_full_queue_raises_an_error_with_its_numbers(database):
    """
    QueueFull may be tried again; it knows the queue, how many wait and how many may.
    """
    client = forebay.Client(database)
    assert client.limit_queue("mail", max_waiting=2) is None
    client.enqueue_now("send", queue="mail")
    client.enqueue_now("send", queue="mail")
    with pytest.raises(QueueFull) as caught:
        client.enqueue_now("send", queue="mail")
    error = caught.value
    assert (error.queue, error.waiting, error.max_waiting, error.retryable) == ("mail", 2, 2, True)
    with psycopg.connect(database) as conn, pytest.raises(QueueFull):
        client.enqueue(conn, "send", queue="mail")
    assert client.limit_queue("mail", max_waiting=None) == Limits(max_waiting=2)
    client.enqueue_now("send", queue="mail")


def test_each_call_changes_only_the_limits_it_names(database):
    """
    A number sets one, None removes it; a refused call changes none.
    """
    client = forebay.Client(database)
    assert client.limit_queue("mail", max_waiting=100, rate=0.5, burst=3) is None
    assert client.limit_queue("mail", concurrency=5) == Limits(max_waiting=100, rate=0.5, burst=3)
    client.limit_queue("mail", rate=None, key_rate=2)
    expected = Limits(max_waiting=100, concurrency=5, key_rate=2)
    (found,) = client.limits("mail")
    assert (found.queue, found.group, found.limits) == ("mail", "default", expected)
    with pytest.raises(InvalidJob, match="burst 3 without a rate"):
        client.limit_queue("mail", max_waiting=5, burst=3)
    with pytest.raises(InvalidJob, match="concurrency 0"):
        client.limit_queue("mail", max_waiting=5, concurrency=0)
    assert client.limits() == [found]
    assert client.limit_queue("mail") == expected
    client.limit_queue("mail", max_waiting=None, concurrency=None, key_rate=None)
    assert client.limits() == []


def test_max_waiting_counts_for_the_group_that_is_named(database):
    """
    It is removed with max_waiting, or alone.
    """
    client = forebay.Client(database)
    client.limit_queue("mail", max_waiting=2, max_waiting_group="audit")
    (found,) = client.limits("mail")
    assert found.limits == Limits(max_waiting=2, max_waiting_group="audit")
    assert client.limit_queue("mail", max_waiting_group=None) == found.limits
    assert client.limits("mail")[0].limits == Limits(max_waiting=2)
    client.limit_queue("mail", max_waiting_group="audit")
    client.limit_queue("mail", max_waiting=None)
    assert client.limits() == []
    with pytest.raises(InvalidJob, match="max_waiting_group audit without a max_waiting"):
        client.limit_queue("mail", max_waiting_group="audit")


def test_what_else_postgresql_says_with_that_sqlstate_is_not_ours():
    """
    53400 is also said of temporary files.
    """
    said = "temporary file size exceeds temp_file_limit (1kB)"
    assert error_from_sqlstate("53400", said) is None
