"""The disk of the database is full: each screen says so, and that it is over."""

import json

import psycopg
import pytest

import forebay
from forebay.watch.metrics import Exporter
from tests.support.engine import connect, enqueue, one, sqlstate, state
from tests.support.mutant import break_function, violation

pytestmark = pytest.mark.usual("a tablespace of the test's own")


def fails(conn):
    """Return the SQLSTATE of a write, or None."""
    return one(conn, "select failed_sqlstate from forebay.probe_write()")


def ask(disk, command, *words):
    """Run a command on a full disk.

    Now and then autovacuum removes a file that the next session writes when it begins. Then
    PostgreSQL refuses the session: it gets the room for that file.
    """
    answer = command(*words, "--dsn", disk.dsn)
    if "could not write init file" in answer.out + answer.err:
        disk.free()
        connect(disk.dsn).close()
        disk.fill()
        answer = command(*words, "--dsn", disk.dsn)
    return answer


def enqueue_until_refused(conn):
    """Use up the room in pages that exist."""
    with pytest.raises(psycopg.errors.DiskFull):
        for _ in range(10_000):
            enqueue(conn)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_probe_needs_a_new_page_and_leaves_nothing(small_disk, guarded):
    """A row in a page that exists would succeed: the control writes no page."""

    def probe():
        with connect(small_disk.dsn) as conn:
            conn.execute("insert into forebay.write_probe values (true)")
            conn.execute("delete from forebay.write_probe")
            assert fails(conn) is None
            small_disk.fill()
            assert fails(conn) == "53100"
            small_disk.free()
            assert fails(conn) is None
            assert one(conn, "select count(*) from forebay.write_probe") == 0

    if guarded:
        probe()
        return
    break_function(small_disk.dsn, "probe_write", ("truncate forebay.write_probe;", ""))
    with violation():
        probe()


def test_doctor_alerts_and_metrics_name_a_full_disk_and_its_end(small_disk, command):
    dsn = small_disk.dsn
    answer = command("doctor", "-v", "--dsn", dsn)
    assert "a write succeeds; the log has " in answer.out
    with connect(dsn) as conn:
        assert command("alerts", "--dsn", dsn).code == 0
        # A scrape trusts a check of the last seconds.
        conn.execute("update forebay.alert_check set checked_at = checked_at - interval '1 min'")
        small_disk.fill()
        enqueue_until_refused(conn)
        answer = ask(small_disk, command, "doctor")
        assert answer.code == 1, answer.out + answer.err
        assert "every write fails: could not extend file" in " ".join(answer.out.split())
        assert "(SQLSTATE 53100)" in answer.out
        assert "Free room on the disk" in answer.out
        answer = ask(small_disk, command, "alerts")
        assert answer.code == 1
        assert "✗ writes: every write fails" in answer.out
        text = Exporter(dsn).text()
        assert "\nforebay_database_writable 0\n" in text
        assert 'forebay_alert{code="writes",subject="",group="",severity="error"} 1' in text
        small_disk.free()
        enqueue(conn)
    assert command("alerts", "--dsn", dsn).code == 0
    assert "space" not in command("doctor", "--dsn", dsn).out
    assert "\nforebay_database_writable 1\n" in Exporter(dsn).text()


def test_what_a_person_can_do_on_a_full_disk(small_disk, command):
    """Reads work, and pausing a queue that has been paused before: that changes a row in its page.
    What appends is refused, and nothing is half done.
    """
    dsn = small_disk.dsn
    with connect(dsn) as conn:
        enqueue(conn, queue="mail")
        enqueue(conn, queue="new")
        one(conn, "select forebay.pause_queue('mail')")
        one(conn, "select forebay.resume_queue('mail')")
        small_disk.fill()
        for words in (["queues", "list"], ["jobs", "list"], ["workers", "list"], ["events", "list"],
                      ["top", "--once", "--every", "0.1"]):  # fmt: skip
            answer = ask(small_disk, command, *words)
            assert answer.code == 0, (words, answer.err)
        assert ask(small_disk, command, "queues", "pause", "mail").code == 0
        assert sqlstate(conn, "select forebay.pause_queue('new')") == "53100"
        assert sqlstate(conn, "select forebay.truncate_queue('new')") == "53100"
        assert one(conn, "select count(*) from forebay.queue_group where queue = 'new'") == 0
        small_disk.free()
        one(conn, "select forebay.truncate_queue('new')")
        assert one(conn, "select forebay.resume_queue('mail')") == 1


def check_alerts(conn) -> None:
    conn.execute("select from forebay.record_alerts_v1('[]')")


def check_later(conn) -> None:
    """Let a check run 16 minutes later: it samples the sizes each quarter-hour."""
    conn.execute("update forebay.space_sample set at = at - interval '16 minutes'")
    conn.execute(
        "update forebay.alert_check"
        " set ballast_released_at = ballast_released_at - interval '16 minutes'"
    )
    check_alerts(conn)


def kept_after(conn, checks: int) -> list[int]:
    """Return the megabytes that are kept for a full disk after each of some checks."""
    kept = []
    for _ in range(checks):
        check_later(conn)
        kept.append(round(one(conn, "select pg_relation_size('forebay.ballast')") / 1e6))
    return kept


def filled(conn) -> None:
    """Let the checks of two hours keep the room."""
    check_alerts(conn)
    assert kept_after(conn, 8)[-1] == 16


def room_is_made(small_disk, command) -> None:
    """On a full disk the room that was kept lets a person pause, cancel, purge and shorten
    retention, though producers have used up every page.
    """
    dsn = small_disk.dsn
    with connect(dsn) as conn:
        jobs = [enqueue(conn, queue="new") for _ in range(2000)]
        filled(conn)
        small_disk.fill()
        enqueue_until_refused(conn)
        assert sqlstate(conn, "select forebay.pause_queue('new')") == "53100"
        assert "→ forebay drop-ballast\n" in ask(small_disk, command, "status").out
        answer = ask(small_disk, command, "doctor")
        assert "`forebay drop-ballast` releases 16 MB" in " ".join(answer.out.split())
        answer = ask(small_disk, command, "drop-ballast")
        assert answer.out == "released 16 MB: now pause what writes, then delete\n"
        assert ask(small_disk, command, "queues", "pause", "new").code == 0
        answer = ask(small_disk, command, "queues", "purge", "new", "--yes")
        assert answer.code == 0, answer.out + answer.err
        assert state(conn, jobs[-1]) == "cancelled"
        conn.execute("select forebay.configure('retention_days', 1)")


def test_the_room_that_is_kept_lets_a_person_act_on_a_full_disk(small_disk, command):
    """No page of any other table is free."""
    room_is_made(small_disk, command)


def test_without_it_a_person_cannot(small_disk, command):
    """The same where the release frees no page."""
    break_function(small_disk.dsn, "drop_ballast", ("truncate forebay.ballast;", ""))
    with violation():
        room_is_made(small_disk, command)


def test_the_room_is_kept_from_the_second_hour_on_and_an_hour_after_its_release(
    database, conn, command
):
    """In steps of 4 MB, and not in the sizes that alerts compare."""
    assert command("drop-ballast", "--dsn", database).out.startswith("no room is kept")
    check_alerts(conn)
    assert kept_after(conn, 8) == [0, 0, 0, 4, 8, 12, 16, 16]
    space = one(conn, "select forebay.measurements() -> 'space'")
    assert round(space["ballast_bytes"] / 1e6) == 16
    assert space["database_bytes"] < one(conn, "select pg_database_size(current_database())")
    assert space["growth_bytes"] < 20e6
    answer = command("drop-ballast", "--json", "--dsn", database)
    assert 16e6 < json.loads(answer.out)["released_bytes"] < 16.1e6
    assert "ballast.drop" in command("events", "list", "--dsn", database).out
    assert kept_after(conn, 5) == [0, 0, 0, 4, 8]


def test_a_release_needs_no_page(conn):
    """A table for long values would have an index, which a truncation gives a new page."""
    query = "select reltoastrelid from pg_class where oid = 'forebay.ballast'::regclass"
    assert one(conn, query) == 0


def test_a_dump_that_reads_the_room_keeps_it(database, conn, command):
    """The release says so, and does not wait; a check of the alerts adds nothing, and is done."""
    filled(conn)
    with psycopg.connect(database) as dump:
        dump.execute("select count(*) from forebay.ballast")
        answer = command("drop-ballast", "--dsn", database)
        assert answer.code != 0
        assert "another session uses the table forebay.ballast" in answer.err
        assert "Traceback" not in answer.err
        check_later(conn)
    with psycopg.connect(database) as other:
        other.execute("lock table forebay.ballast in access exclusive mode")
        check_later(conn)
    assert command("drop-ballast", "--dsn", database).code == 0


def test_the_size_has_a_limit_that_one_can_set(database, conn, command):
    client = forebay.Client(database)
    assert command("alerts", "--dsn", database).code == 0
    size = one(conn, "select forebay.measurements() -> 'space' ->> 'database_bytes'")
    client.set_threshold("database_bytes_most", float(size) / 2)
    assert "✗ size: the database has " in command("alerts", "--dsn", database).out
    assert "its limit is" in command("doctor", "--dsn", database).out
    # A day ago it had half of that: it will have reached twice its size in two days.
    conn.execute("delete from forebay.alert")
    client.set_threshold("database_bytes_most", 2.0 * float(size))
    conn.execute("update forebay.space_sample set at = forebay._now() - interval '1 day',"
                 " database_bytes = database_bytes / 2")  # fmt: skip
    answer = command("alerts", "--dsn", database)
    assert "reaches its limit of" in answer.out
    assert " in 48 h" in answer.out
