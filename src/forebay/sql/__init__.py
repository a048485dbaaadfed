"""The schema: numbered migrations and their loader."""

from forebay.sql.catalog import expected_catalog
from forebay.sql.loader import (
    Migration,
    checksum,
    is_post,
    latest_version,
    migrations,
    required_version,
    roles_by_object,
)
from forebay.sql.statements import split_statements

__all__ = [
    "Migration",
    "checksum",
    "expected_catalog",
    "is_post",
    "latest_version",
    "migrations",
    "required_version",
    "roles_by_object",
    "split_statements",
]
