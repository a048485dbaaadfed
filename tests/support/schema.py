"""The schema, installed the way an operator installs it."""

from importlib import resources

import psycopg


def migrate(dsn: str) -> None:
    """Bring the database at ``dsn`` to the newest version of the schema."""
    folder = resources.files("forebay.sql") / "migrations"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    with psycopg.connect(dsn) as conn:
        for file in files:
            conn.execute(file.read_text(encoding="utf-8"))
