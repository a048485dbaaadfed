"""manage.py flush, which also empties Forebay's tables: jobs are data of the project.

Django's test cases that commit call it after each test.
"""

from __future__ import annotations

from typing import Any, Final

from django.core.management.commands import flush
from django.db import connections, transaction

from forebay.db.drivers import run
from forebay.django._settings import has_schema
from forebay.ops.operation import Operation, nothing

#: Empties all tables but those that describe the schema and the database. The clock of tests goes
#: back. Truncated, because a registry of lanes that lost its rows otherwise is still known.
_EMPTY: Final = Operation(
    """\
do $$
declare
    v_tables text;
begin
    if to_regnamespace('forebay') is null then
        return;
    end if;
    select string_agg(format('forebay.%I', c.relname), ', ') into v_tables
    from pg_catalog.pg_class c
    where c.relnamespace = 'forebay'::regnamespace and c.relkind = 'r'
        and pg_relation_size(c.oid) > 0
        and c.relname not in (
            'cluster', 'event_type', 'schema_migration', 'seal', 'segment', 'setting', 'sink_type');
    if v_tables is not null then
        execute 'truncate ' || v_tables;
    end if;
    delete from forebay.event_type t where t.name not like 'forebay.%';
    delete from forebay.sink_type t where not t.is_ours;
end
$$""",
    nothing,
)

_QUESTION: Final = """\
This will irreversibly remove all data and all jobs of the database "{}".
Type 'yes' to continue, or 'no' to cancel: """


class Command(flush.Command):
    """Django's command, and after it the same for jobs."""

    def handle(self, **options: Any) -> None:
        """Flush a database, and remove its jobs, after one question about both."""
        alias = options["database"]
        if not has_schema(alias):
            super().handle(**options)
            return
        name = connections[alias].settings_dict["NAME"]
        if options["interactive"] and input(_QUESTION.format(name)) != "yes":
            self.stdout.write("Flush cancelled.")
            return
        with transaction.atomic(using=alias):
            super().handle(**{**options, "interactive": False})
            run(connections[alias], _EMPTY)
