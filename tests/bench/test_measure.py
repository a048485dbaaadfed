"""Turns, spread and the clocks of processes."""

import os
import time

import pytest

from forebay_bench._measure import (
    Spread,
    in_turns,
    per_second,
    percentile,
    process_cpu_seconds,
    ratio_of_rounds,
    resident_bytes,
    round_figure,
    server_cpu_seconds,
    wal_bytes,
)
from forebay_bench._report import Bar


def test_contestants_take_turns_in_alternating_order():
    """
    Each once a round, none always first.
    """
    order = []
    engines = {name: lambda name=name: order.append(name) or float(len(order)) for name in "abc"}
    found = in_turns(engines, 3)
    assert "".join(order) == "abccbaabc"
    assert found == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}


def test_a_ratio_is_the_median_of_the_rounds():
    """
    A round in which the whole machine was slow changes nothing.
    """
    assert ratio_of_rounds([10, 2, 30], [5, 1, 10]) == 2
    assert ratio_of_rounds([10, 2, 30, 0, 5], [5, 1, 10, 0, 0]) == 2.5
    assert ratio_of_rounds([0, 0], [0, 0]) == 0
    assert round_figure(ratio_of_rounds([1, 1], [1, 0])) is None
    with pytest.raises(ValueError):
        ratio_of_rounds([1, 2], [1])


def test_a_spread_is_median_lowest_and_highest():
    """
    And how many rounds there were.
    """
    assert Spread.of([5, 1, 3]) == Spread(3, 1, 5, 3)


def test_percentiles_are_values_that_were_measured():
    """
    By nearest rank.
    """
    values = list(range(100))
    assert [percentile(values, share) for share in (0, 0.5, 0.99, 1)] == [0, 50, 99, 99]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, None), (0.012345, 0.0123), (12.345, 12.3), (123456.7, 123457)]
)
def test_figures_have_three_digits_and_rates_are_whole(value, shown):
    """
    More digits would promise what no measurement keeps.
    """
    assert round_figure(value) == shown


def test_a_rate_is_of_the_time_the_work_took():
    """
    Measured by the clock.
    """
    assert 50 < per_second(10, lambda: time.sleep(0.1)) <= 100


def test_a_bar_is_kept_missed_or_not_measured():
    """
    None is no verdict.
    """
    assert Bar("a", 2, at_least=2).holds is True
    assert Bar("a", 1.9, at_least=2).holds is False
    assert Bar("a", 3, at_most=2).holds is False
    assert Bar("a", None, at_least=2).holds is None


def test_written_log_is_counted_in_bytes(conn):
    """
    What is written shows in the difference.
    """
    before = wal_bytes(conn)
    conn.execute("create table t as select repeat('x', 1000) from generate_series(1, 100)")
    assert wal_bytes(conn) - before > 100_000


def test_a_servers_time_includes_its_processes(server, conn):
    """
    Work of a session shows, while it lives and when it has ended.
    """
    before = server_cpu_seconds(server.pid)
    assert before is not None
    conn.execute("select count(*) from generate_series(1, 2000000)")
    during = server_cpu_seconds(server.pid)
    conn.close()
    assert during - before >= 0.05
    assert server_cpu_seconds(server.pid) >= before


def test_this_process_has_time_and_memory():
    """
    And one that does not exist has neither.
    """
    assert process_cpu_seconds(os.getpid()) > 0
    assert resident_bytes(os.getpid()) > 10_000_000
    assert process_cpu_seconds(2**30) is None
    assert resident_bytes(2**30) is None
