"""Dumps of one database, restored into another cluster."""

import subprocess
from contextlib import suppress
from pathlib import Path

import psycopg
from psycopg import sql

from forebay.embedded import EmbeddedServer


def run(
    server: EmbeddedServer,
    program: str,
    *arguments: str,
    user: int | None = None,
    folder: Path | None = None,
) -> None:
    """Run one of the server's programs to its end, in a folder; fail with what it said."""
    done = subprocess.run(
        [server.binaries.program(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        user=user,
        cwd=folder,
    )
    assert done.returncode == 0, f"{program}: {done.stdout[-3000:]} {done.stderr}"


def dump(server: EmbeddedServer, dsn: str, file: Path) -> None:
    """Dump a database of a server."""
    run(server, "pg_dump", "--format=custom", f"--file={file}", f"--dbname={dsn}")


def restore(server: EmbeddedServer, file: Path, name: str, *options: str) -> str:
    """Restore a dump into a new database of a server; return its address."""
    dsn = create_database(server, name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        for role in ("producer", "worker", "operator", "reader"):
            with suppress(psycopg.errors.DuplicateObject):
                conn.execute(f"create role forebay_{role} nologin")
    run(server, "pg_restore", "--exit-on-error", *options, f"--dbname={dsn}", str(file))
    return dsn


def create_database(server: EmbeddedServer, name: str, template: str = "template0") -> str:
    """Create a database, a copy of ``template``; return its address."""
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(
            sql.SQL("create database {} template {}").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
    return server.dsn(name)


def drop_database(server: EmbeddedServer, name: str) -> None:
    """Drop a database, whoever is connected to it."""
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
        )


def move_xids_ahead(server: EmbeddedServer) -> None:
    """Let the server's transaction ids go on five epochs, 2 * 10^10, further on."""
    server.stop()
    owner = server.data_dir.stat().st_uid
    run(server, "pg_resetwal", "--epoch=5", f"--pgdata={server.data_dir}", user=owner)
    server.start()
