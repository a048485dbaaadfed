"""scripts/demo --console [--listen HOST:PORT]: a shop with some troubles, and the console.

A producer and workers, with eight troubles: an endpoint that does not exist, a queue without a
worker, a session that holds a transaction open, a job that needs too much memory, two kinds of
errors, a worker that is frozen in the middle of a job, and an index that lacks articles. The
PostgreSQL is a temporary one, so all may act. All ends with Ctrl-C.
"""

import argparse
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator

import psycopg

import forebay
from forebay.embedded import temporary_server
from forebay.testing import LyingTarget
from forebay.upgrade.migrate import migrate
from watched.app import (
    Articles,
    cut_video,
    export_orders,
    make_thumbnail,
    read_feed,
    send_mail,
    write_invoice,
    write_report,
)

_FOREBAY = (sys.executable, "-m", "forebay")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo --console", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:8040", metavar="HOST:PORT")
    options = parser.parse_args()
    # Ctrl-C reaches the console by itself; when it has ended, so does the rest.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with temporary_server() as server, contextlib.ExitStack() as stack:
        dsn = server.dsn("postgres")
        migrate(dsn)
        _set_up(dsn)
        _let_a_mirror_differ(dsn)
        stack.enter_context(_frozen_worker(dsn))
        for command in (
            ("worker", "watched.app:app", "--queue", "exports"),
            ("worker", "watched.app:app", "--queue", "mail,pictures,default"),
            ("worker", "watched.app:app", "--queue", "mail,invoices,reports,feeds"),
            ("deliver",),
        ):
            stack.enter_context(_running(*command, dsn=dsn))
        holder = stack.enter_context(psycopg.connect(dsn, application_name="analytics"))
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from pg_class")
        stack.enter_context(_producing(dsn))
        return subprocess.run(
            [*_FOREBAY, "console", "--acts", "--listen", options.listen, "--dsn", dsn],
            check=False,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ).returncode


def _set_up(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "select forebay.create_endpoint('partner', 'http',"
            ' \'{"url": "https://partner.invalid/hooks"}\', breaker_threshold => 3)'
        )
        conn.execute("select forebay.set_threshold('snapshot_for', 60)")
        for number in range(20):
            read_feed.push(conn, f"feed-{number}", url=f"https://feeds.example.org/{number}")
        write_report.enqueue(conn, year=2026, pages=2000)
        cut_video.enqueue(conn, video="launch.mp4")


def _let_a_mirror_differ(dsn: str) -> None:
    """Audit an index that lacks three articles."""
    target = LyingTarget()
    target.write(Articles().read(range(37)))
    mirror = forebay.Mirror(forebay.App(dsn), "articles", source=Articles(), target=target)
    try:
        mirror.audit(settle=0)
    finally:
        mirror.close()


@contextlib.contextmanager
def _frozen_worker(dsn: str) -> Generator[None]:
    """Freeze a worker that runs a job; another one gets the job when its lease has ended."""
    with (
        psycopg.connect(dsn, autocommit=True) as conn,
        _running("worker", "watched.app:app", "--queue", "exports", dsn=dsn) as process,
    ):
        job_id = export_orders.enqueue(conn, year=2025)
        running = "select 1 from forebay.job(%s) where state = 'running'"
        while not conn.execute(running, [job_id]).fetchone():
            time.sleep(0.1)
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def _running(*arguments: str, dsn: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a command of Forebay beside the console, without its log."""
    process = subprocess.Popen(
        [*_FOREBAY, *arguments, "--dsn", dsn, "--log-level", "error"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def _producing(dsn: str) -> Generator[None]:
    """Let customers order, about twenty times a second."""
    ended = threading.Event()
    thread = threading.Thread(target=_produce, args=(dsn, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _produce(dsn: str, ended: threading.Event) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for order in itertools.count(1):
            customer = f"customer {random.randint(1, 12)}"
            with conn.transaction():
                send_mail.enqueue(conn, user_id=order, template="order-received")
                write_invoice.enqueue(conn, customer=customer, order=order)
                if order % 3 == 0:
                    make_thumbnail.enqueue(conn, picture=f"{order}.jpg", width=320)
                if order % 20 == 0:
                    conn.execute(
                        "select forebay.send('partner', jsonb_build_object('order', %s::int),"
                        " 'order.created')",
                        [order],
                    )
                if order % 50 == 0:
                    conn.execute("select forebay.enqueue('translate', queue => 'translations')")
            if ended.wait(random.uniform(0.0, 0.1)):
                return


if __name__ == "__main__":
    sys.exit(main())
