"""Each queue and priority has its own lane: names that share one cannot be constructed.

The names below have equal numbers under ``hashtextextended`` with seed 0, which can be inverted.
"""

import psycopg
import pytest

from forebay.errors import LaneTaken, error_from_sqlstate
from tests.support.engine import Reader, connect, enqueue, enqueue_many, one

QUEUE, SAME_QUEUE = "email_orders", "gxVe9B6.RwXC.PK6Q43e58C_"


def collide(dsn: str) -> None:
    """Give names their numbers by a hash that can be inverted."""
    with connect(dsn) as conn:
        for name in (f"{QUEUE}/100/0", f"{SAME_QUEUE}/100/0"):
            assert one(conn, "select hashtextextended(%s, 0)", name) != 0
        conn.execute(
            "create or replace function forebay._secret_hash(p_name text) returns bigint "
            "language sql volatile"
            ' as $$ select hashtextextended(p_name collate "C", 0) $$'
        )
        conn.execute(
            "create or replace function forebay._lane_id(p_queue text, p_priority integer, "
            "p_audience bigint)"
            " returns bigint language sql volatile as"
            " $$ select forebay._secret_hash(concat_ws('/', p_queue, p_priority, "
            "p_audience)) & -2 $$"
        )


def lanes(conn: psycopg.Connection) -> int:
    return one(conn, "select count(distinct lane) from forebay.lane")


def test_names_with_one_public_hash_have_lanes_of_their_own(database, conn):
    """A stranger who uses a constructed name first takes nothing from its victim."""
    enqueue(conn, queue=SAME_QUEUE)
    job = enqueue(conn, queue=QUEUE)
    assert lanes(conn) == 2
    with Reader(database, QUEUE) as reader:
        assert [i for batch in reader.claim_all() for i in batch.job_ids] == [job]


@pytest.mark.parametrize("way", ["enqueue", "bulk", "delayed", "unique"])
def test_a_name_whose_number_is_taken_is_refused(database, conn, way):
    """Nothing is written, and the error is typed, whichever way the job comes."""
    collide(database)
    enqueue(conn, queue=SAME_QUEUE)
    before = one(conn, "select count(*) from forebay.log") + one(
        conn, "select count(*) from forebay.lane"
    )
    with connect(database) as producer, pytest.raises(psycopg.Error) as refused:
        if way == "enqueue":
            enqueue(producer, queue=QUEUE)
        elif way == "bulk":
            enqueue_many(producer, [{"kind": "work", "queue": QUEUE}] * 3)
        elif way == "delayed":
            enqueue(producer, queue=QUEUE, delay="1 hour")
        else:
            producer.execute(
                """select forebay.enqueue('work', '{}', %s, unique_as => '{"once": "k"}')""",
                [QUEUE],
            )
    assert refused.value.sqlstate == "JQ006"
    error = error_from_sqlstate(
        "JQ006", str(refused.value), detail=refused.value.diag.message_detail
    )
    assert isinstance(error, LaneTaken)
    assert error.priority == 100
    after = one(conn, "select count(*) from forebay.log") + one(
        conn, "select count(*) from forebay.lane"
    )
    assert after == before


@pytest.mark.slow
def test_two_schemas_have_different_secrets(server, database, conn):
    """The numbers of one database say nothing about another's."""
    secret = "select last_value from forebay.lane_secret"
    assert one(conn, secret) % 2 == 0
    assert abs(one(conn, secret)) > 2**20


@pytest.mark.parametrize("role", ["producer", "worker", "operator", "reader"])
def test_no_role_reads_the_secret(conn, role):
    """Neither directly nor through a system view."""
    with conn.transaction(force_rollback=True):
        conn.execute(f"set local role forebay_{role}")
        assert (
            one(
                conn,
                "select has_sequence_privilege('forebay.lane_secret', 'select, usage, update')",
            )
            is False
        )
        assert (
            one(
                conn,
                (
                    "select count(last_value) from pg_sequences where schemaname = 'forebay' "
                    "and sequencename = 'lane_secret'"
                ),
            )
            == 0
        )
