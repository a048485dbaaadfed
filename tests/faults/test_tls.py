"""A database that takes nobody without a certificate of the client.

PgBouncer asks for the certificate: the embedded server is built without TLS. It is in session mode,
so that everything else is as without it.
"""

import os
import shutil
import tempfile
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import forebay
from forebay.embedded.owner import Owner, temporary_parent
from forebay.errors import DatabaseUnavailable
from tests.support.engine import enqueue, state
from tests.support.http_endpoint import certificate
from tests.support.pgbouncer import pgbouncer
from tests.support.ports import free_port
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.direct, pytest.mark.slow]


@pytest.fixture
def secure(server, database, needs_pgbouncer, tmp_path):
    """The address of the test's database where only the certificate of the client lets in."""
    ours, theirs = certificate(tmp_path, "client"), certificate(tmp_path)
    ours.chmod(0o600)  # libpq takes no key that others can read
    owner = Owner.current()
    with tempfile.TemporaryDirectory(dir=temporary_parent(owner)) as folder:
        for file in (ours, theirs):
            shutil.copy(file, folder)
        if owner.is_other_account:
            for path in (Path(folder), *Path(folder).iterdir()):
                os.chown(path, owner.uid, owner.gid)
        settings = {
            "pool_mode": "session",
            "listen_addr": "127.0.0.1",
            "listen_port": (port := free_port()),
            "client_tls_sslmode": "verify-full",
            "client_tls_ca_file": f"{folder}/{ours.name}",
            "client_tls_key_file": f"{folder}/{theirs.name}",
            "client_tls_cert_file": f"{folder}/{theirs.name}",
        }
        with pgbouncer(server, **settings):
            yield make_conninfo(
                host="localhost",
                port=port,
                user="postgres",
                dbname=conninfo_to_dict(database)["dbname"],
                sslmode="verify-full",
                sslrootcert=str(theirs),
                sslcert=str(ours),
                sslkey=str(ours),
            )


def test_everything_reaches_a_database_behind_a_certificate(secure, workers, conn):
    """
    The client, the worker with each of its connections, its child processes and the connections
    that handlers get: the address says all that they need.
    """
    from tests.support.worker_app import work

    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(make_conninfo(secure, sslcert="", sslkey=""))
    with psycopg.connect(secure, autocommit=True) as through:
        assert through.info.pgconn.ssl_in_use
        work.enqueue(through, entry=1)
    jobs = [
        enqueue(conn, kind=kind, args={"entry": entry})
        for entry, kind in enumerate(
            ["in_process", "write_in_process", "step_in_transaction", "write", "work_in_thread"], 2
        )
    ]
    worker = workers.start(dsn=secure)
    wait_for(lambda: {state(conn, job) for job in jobs} == {"done"}, 30, lambda: workers.logs)
    worker.terminate()
    worker.wait(20)


def test_an_address_without_the_certificate_is_refused_with_its_reason(secure):
    """
    As any database that cannot be reached, with what the other side said.
    """
    bare = make_conninfo(secure, sslcert="", sslkey="")
    with pytest.raises(DatabaseUnavailable, match="certificate required"):
        forebay.Client(bare).jobs()
