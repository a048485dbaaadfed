"""The schema: numbered migrations, and what reads them."""

from forebay.sql.catalog import expected_catalog
from forebay.sql.loader import Migration, latest_version, migrations

__all__ = ["Migration", "expected_catalog", "latest_version", "migrations"]
