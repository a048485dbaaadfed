"""The annotations, in PostgreSQL. Each function works in its connection's transaction.

Every change, including a deletion, increments the version and enqueues a job in the same
transaction: both are committed, or neither is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, LiteralString

from psycopg import AsyncConnection, Connection
from psycopg.rows import DictRow, dict_row

from annotations.app import annotations
from annotations.search import MATCH
from forebay import BackfillPlan, Rows

SCHEMA = """
create table if not exists page (
    page_id bigint generated always as identity primary key,
    name    text not null unique,
    text    text not null);

create table if not exists annotation (
    annotation_id bigint generated always as identity primary key,
    page_id    bigint not null references page,
    line       integer not null check (line > 0),
    user_name  text not null check (length(user_name) between 1 and 100),
    group_name text not null check (length(group_name) between 1 and 100),
    text       text not null check (length(text) between 1 and 20000),
    tags       text[] not null default '{}',
    version    bigint not null default 1,
    deleted    boolean not null default false,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now());

create index if not exists annotation_page on annotation (page_id, line);
create index if not exists annotation_user on annotation (user_name);
create index if not exists annotation_group on annotation (group_name);
create index if not exists annotation_updated on annotation (updated_at);
"""


#: The argument that holds an annotation's id in jobs made from rows.
_ID = {"id": "annotation_id"}


class NotFoundError(Exception):
    """The page or annotation does not exist."""


class ConflictError(Exception):
    """Another user has changed it meanwhile."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a person writes."""

    line: int
    text: str
    user: str
    group: str
    tags: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A page and its existing annotations."""

    name: str
    text: str = field(repr=False)
    drafts: Sequence[Draft] = ()


def load(conn: Connection[Any], pages: Iterable[Page]) -> int:
    """Write pages with their annotations, if there are none; return the number of annotations."""
    for page in pages:
        row = conn.execute(
            "insert into page (name, text) values (%s, %s) returning page_id",
            [page.name, page.text],
        ).fetchone()
        assert row is not None
        conn.execute(
            """
            insert into annotation (page_id, line, text, user_name, group_name, tags)
            select %s, line, text, user_name, group_name, string_to_array(tags, ' ')
            from unnest(%s::int[], %s::text[], %s::text[], %s::text[], %s::text[])
                 as d(line, text, user_name, group_name, tags)""",
            [row[0], *_columns(page.drafts)],
        )
    # One statement makes all the jobs, in the transaction that writes the annotations.
    return annotations.backfill(Rows("annotation", _ID), tag="load", conn=conn)


def _columns(drafts: Sequence[Draft]) -> list[list[Any]]:
    return [
        [draft.line for draft in drafts],
        [draft.text for draft in drafts],
        [draft.user for draft in drafts],
        [draft.group for draft in drafts],
        [" ".join(draft.tags) for draft in drafts],
    ]


# --- reading ---

_COLUMNS = """
    a.annotation_id as id, p.name as page, a.line, a.user_name as user, a.group_name as "group",
    a.text, a.tags, a.version, a.created_at, a.updated_at"""


async def _rows(
    conn: AsyncConnection[Any], query: LiteralString, *params: Any, **named: Any
) -> list[DictRow]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query, named or params)
        return await cursor.fetchall()


async def pages(conn: AsyncConnection[Any]) -> list[DictRow]:
    """Return all pages, with how many annotations they have."""
    return await _rows(
        conn,
        """
        select p.name, count(a.annotation_id) as annotations
        from page p left join annotation a on a.page_id = p.page_id and not a.deleted
        group by p.name order by p.name collate "C\"""",
    )


async def page(conn: AsyncConnection[Any], name: str) -> DictRow:
    """Return a page with its text and annotations."""
    found = await _rows(conn, "select name, text from page where name = %s", name)
    if not found:
        raise NotFoundError(f"there is no page {name}")
    found[0]["annotations"] = await _rows(
        conn,
        f"select {_COLUMNS} from annotation a join page p using (page_id)"
        " where p.name = %s and not a.deleted order by a.line, a.annotation_id",
        name,
    )
    return found[0]


async def bodies(conn: AsyncConnection[Any], ids: Sequence[int], words: str) -> list[DictRow]:
    """Return annotations in the order of a list of ids, with excerpts.

    Deleted ones are left out: an index that is behind can match wrongly, but a deleted annotation
    is never shown.
    """
    return await _rows(
        conn,
        f"""
        select {_COLUMNS}, ts_headline('english', a.text, m.query,
            'StartSel=\x02, StopSel=\x03, MaxWords=45, MinWords=20, MaxFragments=2, '
            'FragmentDelimiter=" … "') as excerpt
        from ({MATCH}) m, unnest(%(ids)s::bigint[]) with ordinality as found(id, place)
        join annotation a on a.annotation_id = found.id join page p using (page_id)
        where not a.deleted order by found.place""",
        words=words,
        ids=list(ids),
    )


async def places(conn: AsyncConnection[Any], ids: Sequence[int]) -> dict[int, DictRow]:
    """Return page and line of annotations, by their ids."""
    found = await _rows(
        conn,
        "select a.annotation_id as id, p.name as page, a.line from annotation a join page "
        "p using (page_id)"
        " where a.annotation_id = any(%(ids)s::bigint[])",
        ids=list(ids),
    )
    return {row["id"]: row for row in found}


# --- changing ---


async def create(conn: AsyncConnection[Any], on: str, draft: Draft) -> DictRow:
    """Write an annotation; return it."""
    made = await _rows(
        conn,
        f"""
        with a as (
            insert into annotation (page_id, line, text, user_name, group_name, tags)
            select page_id, %s, %s, %s, %s, %s from page where name = %s
            returning *)
        select {_COLUMNS} from a join page p using (page_id)""",
        *(draft.line, draft.text, draft.user, draft.group, list(draft.tags), on),
    )
    if not made:
        raise NotFoundError(f"there is no page {on}")
    await annotations.achanged(conn, made[0]["id"], tag="api.create")
    return made[0]


async def edit(
    conn: AsyncConnection[Any], name: int, text: str, tags: Sequence[str], version: int | None
) -> DictRow:
    """Change an annotation, if it still has the version on which the change is based; return it."""
    made = await _rows(
        conn,
        f"""
        update annotation a set text = %s, tags = %s, version = version + 1, updated_at = now()
        from page p
        where annotation_id = %s and not deleted and version = coalesce(%s, version)
            and p.page_id = a.page_id
        returning {_COLUMNS}""",
        *(text, list(tags), name, version),
    )
    if not made:
        await _why_not(conn, name)
    await annotations.achanged(conn, name, tag="api.update")
    return made[0]


async def set_deleted(conn: AsyncConnection[Any], name: int, *, deleted: bool) -> DictRow:
    """Delete an annotation, or bring it back; return it.

    It is only flagged, and so its deletion has a version.
    """
    made = await _rows(
        conn,
        f"""
        update annotation a set deleted = %s, version = version + 1, updated_at = now()
        from page p
        where annotation_id = %s and deleted <> %s and p.page_id = a.page_id
        returning {_COLUMNS}""",
        *(deleted, name, deleted),
    )
    if not made:
        await _why_not(conn, name)
    await annotations.achanged(conn, name, tag="api.delete" if deleted else "api.restore")
    return made[0]


async def _why_not(conn: AsyncConnection[Any], name: int) -> None:
    found = await _rows(
        conn, "select version from annotation where annotation_id = %s and not deleted", name
    )
    if not found:
        raise NotFoundError(f"there is no annotation {name}")
    raise ConflictError(f"annotation {name} has version {found[0]['version']} by now")


async def waiting(conn: AsyncConnection[Any]) -> int:
    """Return how many changes are not proved to be in the index yet."""
    found = await _rows(
        conn,
        (
            "select coalesce(sum(scheduled + ready + claimed + running + retrying), 0)::int as "
            "n from forebay.depth(%s)"
        ),
        annotations.handler.kind.queue,
    )
    return int(found[0]["n"])


# --- indexing again ---


@dataclass(frozen=True, slots=True)
class Choice:
    """Which annotations to index again: one of these.

    Deleted ones are included, since their copies may still exist.

    Attributes:
        user: all of a user.
        group: all of a group.
        page: all on a page.
        since: all changed from this time on ...
        until: ... and up to this one, both included.
        ids: these.
    """

    user: str | None = None
    group: str | None = None
    page: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ids: Sequence[int] | None = None

    def rows(self) -> tuple[Rows, str, int]:
        """Return the rows, the last part of their tag, and the priority: one user, group or page
        runs before the rest.

        Alerts ignore jobs with a tag that begins with "backfill.", whatever their priority.
        """
        if self.user is not None:
            return Rows("annotation", _ID, equal={"user_name": self.user}), "user", 100
        if self.group is not None:
            return Rows("annotation", _ID, equal={"group_name": self.group}), "group", 100
        if self.page is not None:
            on = "page_id = (select page_id from page where name = %(page)s)"
            return Rows("annotation", _ID, where=on, params={"page": self.page}), "page", 100
        if self.ids is not None:
            return Rows("annotation", _ID, ids=self.ids, id_column="annotation_id"), "ids", 1000
        times = {"updated_at": (self.since, self.until)}
        return Rows("annotation", _ID, between=times), "time", 1000


def plan_reindex(choice: Choice, *, force: bool = False) -> BackfillPlan:
    """Return how many jobs ``reindex`` would enqueue, and the token of exactly these jobs."""
    rows, word, priority = choice.rows()
    return annotations.plan_backfill(rows, tag=f"backfill.{word}", priority=priority, force=force)


def reindex(choice: Choice, *, force: bool = False, token: str | None = None) -> int:
    """Enqueue jobs for these annotations, due at once, by one statement in the database.

    Return how many.
    """
    rows, word, priority = choice.rows()
    return annotations.backfill(
        rows, tag=f"backfill.{word}", priority=priority, force=force, token=token
    )
