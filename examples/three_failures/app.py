"""The jobs, with Forebay: what is enqueued in a transaction, and the handler that runs it."""

import psycopg

import forebay

app = forebay.App()

#: The users that a worker has welcomed.
welcomed: list[str] = []


@app.job(queue="failures")
def welcome(name: str) -> None:
    welcomed.append(name)


@app.job(queue="failures")
def nothing(args: str) -> None: ...


def register(conn: psycopg.Connection, name: str) -> None:
    conn.execute("insert into failures_user (name) values (%s)", [name])
    welcome.enqueue(conn, name)


def tables(conn: psycopg.Connection) -> None:
    conn.execute("drop table if exists failures_user, failures_job")
    conn.execute("create table failures_user (name text primary key)")
    conn.commit()


def users(conn: psycopg.Connection) -> list[str]:
    return [name for (name,) in conn.execute("select name from failures_user order by name")]
