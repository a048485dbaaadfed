"""A PgBouncer in transaction mode before a test server, on a unix socket in a temporary folder."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import psycopg.conninfo
import psycopg.rows

from forebay.embedded import EmbeddedServer
from forebay.embedded.owner import Owner, temporary_parent
from tests.support.waiting import wait_for

_PORT = 6432


class PgBouncer:
    """One that is running.

    Args:
        folder: of its files and its socket.
        owner: the account that runs it, and the server behind it.
    """

    def __init__(self, folder: Path, owner: Owner, server: EmbeddedServer, **settings: object):
        self.folder = folder
        self._owner = owner
        self._process: subprocess.Popen[bytes] | None = None
        chosen = {
            "unix_socket_dir": folder,
            "listen_port": _PORT,
            "logfile": folder / "log",
            "auth_type": "trust",
            "auth_file": folder / "users",
            "admin_users": "postgres",
            "pool_mode": "transaction",
            "max_client_conn": 500,
            "default_pool_size": 40,
            "so_reuseport": 0,
            "server_login_retry": 1,
        } | settings
        self._port = chosen["listen_port"]
        (folder / "users").write_text('"postgres" ""\n')
        lines = ["[databases]", f"* = host={server.socket_dir} port=5432", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in chosen.items()]
        (folder / "ini").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._process = subprocess.Popen(
            [program(), "-q", self.folder / "ini"],
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._owner.popen_arguments(),
        )
        wait_for(self._answers, 10, self.log)

    def stop(self) -> None:
        """End it at once, its clients with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def command(self, text: str) -> list[tuple[object, ...]]:
        """Run a command of its console, such as ``pause`` or ``show servers``."""
        with psycopg.connect(self.dsn("pgbouncer"), autocommit=True) as console:
            cursor = psycopg.ClientCursor(console)
            cursor.execute(text)
            return cursor.fetchall() if cursor.description else []

    def clients(self, dbname: str) -> list[str]:
        """Return the names of the applications that are connected to a database through here."""
        with psycopg.connect(
            self.dsn("pgbouncer"), autocommit=True, row_factory=psycopg.rows.dict_row
        ) as console:
            rows = psycopg.ClientCursor(console).execute("show clients").fetchall()
        return [row["application_name"] for row in rows if row["database"] == dbname]

    def dsn(self, dbname: str) -> str:
        """Return the address of a database of the server, through here."""
        return psycopg.conninfo.make_conninfo(
            host=str(self.folder), port=self._port, dbname=dbname, user="postgres"
        )

    def log(self) -> str:
        """Return what it has logged."""
        path = self.folder / "log"
        return path.read_text() if path.exists() else "no log"

    def _answers(self) -> bool:
        try:
            return bool(self.command("show version"))
        except psycopg.OperationalError:
            return False


def program() -> str | None:
    """Return the path of the program, None when it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pgbouncer(server: EmbeddedServer, **settings: object) -> Iterator[PgBouncer]:
    """Lend one before a server."""
    owner = Owner.current()
    folder = Path(tempfile.mkdtemp(prefix="fb-", dir=temporary_parent(owner)))
    if owner.is_other_account:
        os.chown(folder, owner.uid, owner.gid)
    found = PgBouncer(folder, owner, server, **settings)
    try:
        found.start()
        yield found
    finally:
        found.stop()
        shutil.rmtree(folder, ignore_errors=True)
