"""A row and its job in one transaction: both exist, or neither does."""

import psycopg
from app import app, send_welcome

with psycopg.connect(app.dsn, autocommit=True) as conn:
    conn.execute("create table users (user_id serial primary key, name text not null)")

    with conn.transaction():
        row = conn.execute("insert into users (name) values ('Ann') returning user_id").fetchone()
        assert row is not None
        send_welcome.enqueue(conn, user_id=row[0])
        send_welcome.using(delay=3600, tag="signup").enqueue(conn, row[0], locale="it")

    try:
        with conn.transaction():
            conn.execute("insert into users (user_id, name) values (99, 'Bob')")
            send_welcome.enqueue(conn, user_id=99)
            raise RuntimeError("on second thoughts")
    except RuntimeError:
        pass  # neither Bob nor his job

app.run_worker(until_idle=True)

waiting = app.client().jobs(state="scheduled")
assert [job.args for job in waiting] == [{"user_id": 1, "locale": "it"}]
