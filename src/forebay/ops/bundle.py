"""What a bundle for a bug report has from the database: JSON by section.

No arguments, headers, keys or tags of jobs.
"""

from __future__ import annotations

import json
from typing import Any, Final

from forebay.ops.operation import Operation, scalar

_GUCS: Final = (
    "server_version", "server_encoding", "max_connections", "shared_buffers", "work_mem",
    "wal_level", "synchronous_commit", "fsync",
    "max_prepared_transactions", "autovacuum", "autovacuum_naptime", "autovacuum_max_workers",
    "default_transaction_isolation",
    "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
    "hot_standby_feedback", "max_locks_per_transaction", "jit",
    "TimeZone", "max_wal_size", "checkpoint_timeout",
)  # fmt: skip

#: A query for rows by section.
SECTIONS: Final = {
    "server": (
        f"select s.name, s.setting, s.unit, s.source from pg_settings s where s.name = any "
        f"('{{{','.join(_GUCS)}}}')"
    ),
    "database_settings": "select s.name, s.value from forebay.setting s order by 1",
    "queues": "select * from forebay.depth()",
    "groups": "select * from forebay.groups()",
    "workers": """\
select w.worker, w.group_name, w.queues, w.app_version, w.forebay_version, w.started_at,
    w.heartbeat_at, w.concurrency, w.memory_bytes, w.running
from forebay.workers() w""",
    "segments": """\
select s.segment_id, s.lo, s.hi, s.created_at, s.removed_at, f.xid, f.sealed_at,
    pg_total_relation_size(to_regclass('forebay.log_' || s.segment_id)) as bytes
from forebay.segment s left join forebay.seal f using (segment_id)
where s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) order by 1 desc limit 200""",
    "duties": "select d.name, d.since, d.recorded_at, d.error from forebay.duty d",
    # Which conditions an act had, and not their values.
    "events": """\
select e.event_id, e.at, e.act, e.queue, e.group_name, e.kind, e.subject_id, e.count,
    array(select jsonb_object_keys(e.new)) as new
from (select i.event_id, i.at, i.act, i.queue, i.group_name, i.kind, i.subject_id, i.count,
             case jsonb_typeof(i.new) when 'object' then i.new else '{}' end as new
      from forebay.event i order by i.event_id desc limit 200) e""",
    "dead_letters": """\
select d.kind, d.queue, d.reason, d.errors -> -1 ->> 'type' as error_type, count(*), min(d.died_at)
    as first_at, max(d.died_at) as last_at,
       left((array_agg(d.errors -> -1 ->> 'message' order by d.died_at desc))[1], 500) as error
from (select i.kind, i.queue, i.reason, i.errors, i.died_at from forebay.dead_letter i
    order by i.dead_id desc limit 10000) d
group by 1, 2, 3, 4 order by 5 desc limit 200""",
    "tables": """\
select t.relname, t.n_live_tup, t.n_dead_tup, t.seq_scan, t.idx_scan, t.n_tup_ins, t.n_tup_upd,
    t.n_tup_del, t.last_vacuum, t.last_autovacuum,
       t.last_analyze, t.last_autoanalyze, pg_table_size(t.relid) as table_bytes,
           pg_indexes_size(t.relid) as index_bytes
from pg_stat_all_tables t where t.schemaname = 'forebay' and t.relname !~ '^lock_'
    and pg_total_relation_size(t.relid) > 0
order by pg_total_relation_size(t.relid) desc limit 200""",
    "sessions": """\
select a.application_name, a.state, a.wait_event_type, count(*), max(extract(epoch
    from clock_timestamp() - a.xact_start)) as longest_transaction_seconds
from pg_stat_activity a where a.datname = current_database() group by 1, 2, 3 order by 4 desc
    limit 50""",
}

#: Columns with texts that an application wrote.
ERROR_COLUMNS: Final = frozenset({"error"})


def section(name: str) -> Operation[list[dict[str, Any]]]:
    """Return the call that reads the rows of a section."""
    return Operation(
        f"select coalesce(json_agg(b), '[]')::text from ({SECTIONS[name]}) b",
        lambda rows: json.loads(scalar(rows)),
    )
