"""The mirror that keeps the index in step: a source, a target, and jobs. Workers run the jobs:
forebay worker annotations.app:app

Two environment variables are the addresses: FOREBAY_DATABASE_URL of the annotations,
ANNOTATIONS_INDEX_URL of the index, which is a PostgreSQL database here, on the same or another
server.
"""

import os
from typing import Any

import forebay
from forebay.errors import ConfigError
from forebay.mirror import PostgresTarget, QuerySource

#: A change made by a person runs before bulk work.
PRIORITY = 10


def _number(name: str, default: float) -> float:
    return float(os.environ.get(name) or default)


def index_dsn() -> str:
    found = os.environ.get("ANNOTATIONS_INDEX_URL")
    if not found:
        raise ConfigError("ANNOTATIONS_INDEX_URL", "is not set", hint="The index's database.")
    return found


def words_of(body: dict[str, Any]) -> str:
    """Return the text by which an annotation is found: its text, page, tags and author."""
    parts = [body["text"], body["page"], body["page"].replace(".", " ").replace("_", " ")]
    return " ".join([*parts, *body["tags"], body["user_name"], body["group_name"]])


app = forebay.App()

source = QuerySource(
    lambda: app.dsn,
    read="""
        select a.annotation_id as id, a.version, a.deleted as gone, a.text, a.tags, a.user_name,
            a.group_name, p.name as page
        from annotation a join page p using (page_id)
        where a.annotation_id = any(%(ids)s)""",
    scan="""
        select annotation_id as id, version from annotation
        where annotation_id > coalesce(%(after)s, 0) and not deleted
        order by annotation_id limit %(limit)s""",
)

target = PostgresTarget(index_dsn, text=words_of)

annotations = forebay.Mirror(
    app,
    "annotations",
    source=source,
    target=target,
    priority=PRIORITY,
    grace=_number("ANNOTATIONS_GRACE_SECONDS", 60),
    interval=_number("ANNOTATIONS_INTERVAL_SECONDS", 5),
    timeout=_number("ANNOTATIONS_TIMEOUT_SECONDS", 30),
    direct_timeout=_number("ANNOTATIONS_DEADLINE_SECONDS", 0.5),
)
