"""Producing with nothing but a driver and one SELECT, from any language."""

import psycopg
import pytest

from forebay import App
from forebay.testing import run_until_idle

app = App()
seen: list[tuple[int, str]] = []


@app.job(queue="mail")
def send_welcome(user_id: int, locale: str = "en") -> None:
    seen.append((user_id, locale))


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()


def test_committed_jobs_run_and_rolled_back_ones_never(database):
    """
    The producer knows PostgreSQL and the name of the kind, nothing else. A job whose transaction
    or savepoint was rolled back is never seen; a trigger enqueues like anybody.
    """
    with psycopg.connect(database) as conn:
        enqueue = "select forebay.enqueue('send_welcome', %s, queue => 'mail')"
        conn.execute(enqueue, ['{"user_id": 1}'])
        conn.commit()
        conn.execute(enqueue, ['{"user_id": 2}'])
        conn.rollback()
        with conn.transaction(), conn.transaction(force_rollback=True):
            conn.execute(enqueue, ['{"user_id": 3}'])
        conn.execute("create table users (id int primary key, locale text)")
        conn.execute(
            """
            create function welcome() returns trigger language plpgsql as $$
            begin
                perform forebay.enqueue('send_welcome',
                    jsonb_build_object('user_id', new.id, 'locale', new.locale), queue => 'mail');
                return null;
            end $$;
            create trigger welcome after insert on users for each row execute function welcome();
            """
        )
        conn.execute("insert into users values (4, 'it')")
        conn.execute(
            "select forebay.enqueue_many('send_welcome',"
            " array_agg(jsonb_build_object('user_id', n)), queue => 'mail')"
            " from generate_series(5, 7) n"
        )
        conn.commit()
        conn.execute(enqueue, ['{"user_id": 8}'])  # not committed while the worker runs

        run_until_idle(app, database)

    assert sorted(seen) == [(1, "en"), (4, "it"), (5, "en"), (6, "en"), (7, "en")]
