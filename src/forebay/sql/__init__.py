"""The schema: numbered migrations, and what reads them."""

from forebay.sql.loader import Migration, latest_version, migrations

__all__ = ["Migration", "latest_version", "migrations"]
