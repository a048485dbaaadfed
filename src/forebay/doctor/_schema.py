"""The schema: its version, and whether it still matches the migrations.

One query reads the catalog as (object, definition) pairs. The same query, run on an unchanged
database, made ``forebay/sql/catalog.json``; a difference is a finding of the check ``objects``.
Definitions are normalised, so that all supported versions of PostgreSQL and all segments give the
same text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.doctor._finding import Finding, Level
from forebay.errors import SchemaError
from forebay.model.text import counted
from forebay.ops.operation import Operation
from forebay.sql import expected_catalog, is_post, latest_version, migrations, required_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.ops.operation import ResultRows

#: Findings about objects shown one by one; the rest is counted.
_SHOWN_MAX: Final = 12

CATALOG_SQL: Final = r"""
with relation as (
    select c.oid, c.relkind, c.relname, c.relrowsecurity, c.relforcerowsecurity,
           case when c.relname ~ '^log_[0-9]+$' then 'log_#' else c.relname::text end as name,
           c.relname ~ '^log_[0-9]+$' as is_leaf
    from pg_class c where c.relnamespace = 'forebay'::regnamespace),
leaves as (select count(*) as count from relation where is_leaf),
part (is_leaf, object, definition) as (
    select r.is_leaf, format('column %%s.%%s', r.name, a.attname),
           concat_ws(' ', format_type(a.atttypid, a.atttypmod),
                     case when a.attnotnull then 'not null' end,
                     'default ' || pg_get_expr(d.adbin, d.adrelid),
                     case when a.attidentity <> '' then 'identity' end)
    from relation r
    join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef d on d.adrelid = r.oid and d.adnum = a.attnum
    where r.relkind in ('r', 'p', 'v', 'm', 'f', 'c')
    union all
    select r.is_leaf,
           format('constraint %%s.%%s', r.name, regexp_replace(n.conname, '^log_[0-9]+', 'log_#')),
           case when r.is_leaf then regexp_replace(pg_get_constraintdef(n.oid), '[0-9]+', '#', 'g')
                else pg_get_constraintdef(n.oid) end
    from relation r join pg_constraint n on n.conrelid = r.oid
    where n.contype <> 'n'
    union all
    select r.is_leaf,
           format('index %%s.%%s', r.name, regexp_replace(x.relname, '^log_[0-9]+', 'log_#')),
           regexp_replace(pg_get_indexdef(i.indexrelid), 'log_[0-9]+', 'log_#', 'g')
               || case when i.indisvalid then '' else ' invalid' end
    from relation r join pg_index i on i.indrelid = r.oid join pg_class x on x.oid = i.indexrelid
    union all
    -- Without one, a publication of the table makes UPDATE and DELETE fail.
    select r.is_leaf, format('replica identity of %%s', r.name),
           concat_ws(' ', case c.relreplident when 'f' then 'full' when 'i' then 'index' when 'n'
               then 'nothing' end, x.relname)
    from relation r join pg_class c on c.oid = r.oid
    left join (pg_index i join pg_class x on x.oid = i.indexrelid) on i.indrelid = r.oid
        and i.indisreplident
    where c.relkind in ('r', 'p') and c.relreplident <> 'd'
    union all
    select r.is_leaf, format('trigger %%s.%%s', r.name, t.tgname), pg_get_triggerdef(t.oid)
    from relation r join pg_trigger t on t.tgrelid = r.oid where not t.tgisinternal
    union all
    select r.is_leaf, format('rule %%s.%%s', r.name, u.rulename), pg_get_ruledef(u.oid)
    from relation r join pg_rewrite u on u.ev_class = r.oid where u.rulename <> '_RETURN'
    union all
    select r.is_leaf, format('row security of %%s', r.name), 'enabled'
    from relation r where r.relrowsecurity or r.relforcerowsecurity
    union all
    select r.is_leaf, format('policy %%s.%%s', r.name, p.polname), 'policy'
    from relation r join pg_policy p on p.polrelid = r.oid
    union all
    select false, format('sequence %%s', r.name),
           concat_ws(' ', q.seqtypid::regtype, q.seqincrement, q.seqcache, q.seqcycle)
    from relation r join pg_sequence q on q.seqrelid = r.oid
    where r.name !~ '^leader_[1-9][0-9]*$'
    union all
    select p.proname ~ '^_(read|moved|take|take_lanes|read_keyed|fetch|arrivals)_[0-9]+$',
           format('function %%s(%%s)', regexp_replace(p.proname,
               '^(_read|_moved|_take|_take_lanes|_read_keyed|_fetch|_read_limited|_fetch_limited)'
               '_[0-9]+$', E'\\1_#'),
                  pg_get_function_identity_arguments(p.oid)),
           md5(concat_ws('|',
                         -- A claim's own function for a segment also has its border, its number
                         -- and the seal before.
                         case when p.proname ~ '^_take(_lanes)?_[0-9]+$'
                              then regexp_replace(regexp_replace(p.prosrc,
                                       E'exists \\(select from forebay[.]seal f'
                                       ' where f[.]segment_id = [0-9]+ and'
                                       ' f[.]xid <= pg_snapshot_xmax\\(s[.]stop\\)\\)', 'true'),
                                           E'\\m(log_)?[0-9]+\\M', E'\\1#', 'g')
                              else regexp_replace(p.prosrc, '(forebay[.]log)_[0-9]+', E'\\1_#',
                                  'g') end,
                         pg_get_function_result(p.oid), pg_get_function_arguments(p.oid),
                         p.provolatile, p.prosecdef,
                         (select string_agg(o, ',' order by o) from unnest(p.proconfig) o)))
    from pg_proc p where p.pronamespace = 'forebay'::regnamespace
    union all
    select false, format('grant to public on %%s', a.subject), string_agg(a.right, ', ')
    from (select r.relname::text as subject, x.privilege_type as right
          from relation r join pg_class c on c.oid = r.oid
          cross join lateral aclexplode(c.relacl) x where x.grantee = 0
          union all
          select p.proname, x.privilege_type
          from pg_proc p
          cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) x
          where p.pronamespace = 'forebay'::regnamespace and x.grantee = 0) a
    group by a.subject
    union all
    select false, format('owner of %%s', o.subject), o.owner::regrole::text
    from (select r.name::text as subject, c.relowner as owner
          from relation r join pg_class c on c.oid = r.oid
          union all
          select p.proname, p.proowner from pg_proc p
          where p.pronamespace = 'forebay'::regnamespace) o
    join pg_namespace s on s.nspname = 'forebay' and s.nspowner <> o.owner)
select object, definition
       || case when is_leaf and count(*) <> (select count from leaves)
               then format(' (on %%s of %%s segments)', count(*), (select count from leaves))
               else '' end
from part
group by is_leaf, object, definition
order by object, definition
"""


def catalog() -> Operation[dict[str, str]]:
    """The objects of the schema with their definitions."""
    return Operation(CATALOG_SQL, _read_catalog)


def _read_catalog(rows: ResultRows) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, definition in rows:
        # Segments that differ from each other give several definitions of one object.
        found[name] = f"{found[name]}; {definition}" if name in found else definition
    return found


def installed() -> Operation[tuple[bool, bool]]:
    """Whether a schema forebay exists, and whether it records its migrations."""
    return Operation(
        # From the catalog, which every role can read.
        "select exists (select from pg_namespace n where n.nspname = 'forebay'),"
        " exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        "         where n.nspname = 'forebay' and c.relname = 'schema_migration')",
        lambda rows: (rows[0][0], rows[0][1]),
    )


def objects() -> Operation[list[Finding]]:
    """Where the schema differs from the migrations."""
    return Operation(
        CATALOG_SQL, lambda rows: judge_objects(_read_catalog(rows), expected_catalog())
    )


def not_compared() -> Finding:
    """The finding instead where another version made the schema."""
    what = "the schema was not compared with the migrations: it is not of this library's version"
    return Finding("objects", Level.NOTICE, what, "Run the doctor of that version of the library.")


def judge_objects(found: Mapping[str, str], expected: Mapping[str, str]) -> list[Finding]:
    """Return which objects of a catalog are missing, changed or added.

    >>> judge_objects({"index log.a": "x"}, {"index log.a": "x"})[0].level
    <Level.OK: 'ok'>
    """
    missing = sorted(expected.keys() - found.keys())
    changed = sorted(
        name for name in expected.keys() & found.keys() if expected[name] != found[name]
    )
    extra = sorted(found.keys() - expected.keys())
    findings = [
        *_together(missing, "missing", found, expected),
        *_together(changed, "differs from the migrations", found, expected),
        *(_extra(name, found[name]) for name in extra),
    ]
    if not findings:
        what = f"{counted(len(expected), 'object')} match the migrations"
        return [Finding("objects", Level.OK, what, facts={"objects": len(expected)})]
    findings.sort(key=lambda finding: finding.level.rank)
    if len(findings) > _SHOWN_MAX:
        rest = counted(len(findings) - _SHOWN_MAX, "more object was", "more objects were")
        findings[_SHOWN_MAX:] = [Finding("objects", findings[_SHOWN_MAX].level, f"{rest} added")]
    return findings


def _together(
    names: Sequence[str], problem: str, found: Mapping[str, str], expected: Mapping[str, str]
) -> list[Finding]:
    if not names:
        return []
    # Without the arguments: functions have many.
    short = list(dict.fromkeys(name.partition("(")[0] for name in names))
    listed = ", ".join(short[:_SHOWN_MAX])
    if len(short) > _SHOWN_MAX:
        listed += f" and {len(short) - _SHOWN_MAX} more"
    facts = {
        "objects": [
            {"object": name, "found": found.get(name), "expected": expected[name]} for name in names
        ]
    }
    return [Finding("objects", Level.ERROR, f"{problem}: {listed}", _OBJECTS_REMEDY, facts)]


_OBJECTS_REMEDY: Final = (
    "The schema was changed by hand. `forebay migrate --repair` restores functions and grants; "
    "compare the rest with the output of `forebay sql`."
)


def _extra(name: str, definition: str) -> Finding:
    facts = {"object": name, "found": definition}
    if name.startswith("grant to public"):
        what = f"{name}: {definition.lower()}"
        remedy = "Every role can use it. Revoke it: select forebay._grant();"
        return Finding("objects", Level.WARNING, what, remedy, facts)
    if name.startswith("row security"):
        what = f"{name} is enabled: workers may see only a part of the jobs"
        remedy = "alter table forebay.... disable row level security"
        return Finding("objects", Level.ERROR, what, remedy, facts)
    if name.startswith("owner of"):
        what = f"the {name} is {definition}, not the schema's owner"
        remedy = "Give it to the schema's owner: its functions run with the rights of the owner."
        return Finding("objects", Level.WARNING, what, remedy, facts)
    if name.startswith(("trigger", "rule")):
        what = f"{name} was added: it runs within every enqueue, claim or settlement that it sees"
        return Finding("objects", Level.WARNING, what, "Drop it unless it is intended.", facts)
    return Finding("objects", Level.NOTICE, f"{name} was added", None, facts)


def applied() -> Operation[list[Finding]]:
    """Whether the applied migrations are the migrations of this library."""
    return Operation(
        "select m.version, m.name, m.checksum, extract(epoch from clock_timestamp() - m.applied_at)"
        " ::float8 from forebay.schema_migration m order by m.version",
        _judge_applied,
    )


def judge_installed(schema: bool, recorded: bool) -> list[Finding]:
    """Return a finding when there is no schema to check; none when there is."""
    if not schema:
        error = SchemaError(found=None, needed=latest_version())
        return [Finding("schema", Level.ERROR, _without_name(error), error.hint)]
    if not recorded:
        return [
            Finding(
                "schema",
                Level.ERROR,
                "forebay exists but records no migration",
                (
                    "It was not installed by `forebay migrate` or `forebay sql`. Find its "
                    "origin, or drop it."
                ),
            )
        ]
    return []


def _without_name(error: SchemaError) -> str:
    """Return what is wrong, for a line that begins with the name of the check."""
    return error.message.removeprefix("schema ")


def _judge_applied(rows: ResultRows) -> list[Finding]:
    found = max((version for version, *_ in rows), default=0)
    needed = latest_version()
    facts = {"version": found, "needed": needed}
    served_from = max((version for version, name, *_ in rows if is_post(name)), default=0)
    if found < required_version() or served_from > needed:
        error = SchemaError(found=found or None, needed=needed)
        return [Finding("schema", Level.ERROR, _without_name(error), error.hint, facts)]
    if found > needed:
        what = f"version {found}, newer than version {needed} of this library, which still works"
        remedy = "Upgrade the library before the next migration."
        return [Finding("schema", Level.NOTICE, what, remedy, facts)]
    if found < needed:
        pending = [f"{step.version:04} {step.name}" for step in migrations()[found:]]
        what = f"version {found}, which is sufficient; pending: {', '.join(pending)}"
        remedy = "Run `forebay migrate` when the last process of the previous version has ended."
        return [Finding("schema", Level.NOTICE, what, remedy, facts)]
    ours = {step.version: step.checksum for step in migrations()}
    differing = [name for version, name, checksum, _ in rows if ours.get(version) != checksum]
    if differing:
        return [
            Finding(
                "schema",
                Level.ERROR,
                f"version {found}, but applied from different files: {', '.join(differing)}",
                "A released migration never changes: install the released library.",
                facts,
            )
        ]
    return [Finding("schema", Level.OK, f"version {found}, as this library needs", None, facts)]
