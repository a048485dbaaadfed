"""A row and its job in one transaction: both exist, or neither does.

Start it, and in another terminal the worker that runs its jobs:

    python producer.py
    forebay worker app:app
"""

import psycopg
from app import USERS, app, send_welcome


def register(conn: psycopg.Connection, email: str) -> None:
    row = conn.execute("insert into users (email) values (%s) returning id", [email]).fetchone()
    assert row is not None
    send_welcome.enqueue(conn, user_id=row[0])
    send_welcome.using(delay=3600, tag="reminder").enqueue(conn, row[0], locale="it")
    if email.startswith("bob"):
        raise ValueError("on second thoughts")


if __name__ == "__main__":
    with psycopg.connect(app.dsn, autocommit=True) as conn:
        conn.execute(USERS)
        for email in ("ann@example.com", "bob@example.com"):
            try:
                with conn.transaction():
                    register(conn, email)
                print(f"registered {email}, with two jobs")
            except ValueError:
                print(f"rolled back {email}, and the jobs")
