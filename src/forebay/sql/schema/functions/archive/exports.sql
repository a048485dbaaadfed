-- grant: operator, reader, worker

-- The exports that segments wait for.
--
-- Columns:
--   exported           segments that the export has written and that still exist
--   waiting            full segments that it has not written
--   due, due_at        those of them that retention would have emptied, and since when the first of
--                      them
--   missed, missed_at  segments that were emptied before it had written them, and when the last of
--                      them
--
-- See: docs/howto/look-back.md#keep-everything
create function forebay.exports()
returns table (name text, hold_hours integer, created_at timestamptz, exported bigint, exported_at timestamptz, waiting bigint, due bigint,
               due_at timestamptz, missed bigint, missed_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    select e.name, e.hold_hours, e.created_at, x.exported, x.exported_at, w.waiting, w.due, w.due_at, e.missed, e.missed_at
    from forebay.export e
    cross join lateral (select count(*) as exported, max(i.exported_at) as exported_at from forebay.exported_segment i where i.name = e.name) x
    cross join lateral (
        select count(*) as waiting, count(s.due_at) as due, min(s.due_at) as due_at
        from forebay.segment s join forebay.seal f using (segment_id)
        where s.removed_at is null and not exists (
            select from forebay.exported_segment i where i.name = e.name and i.segment_id = s.segment_id)) w
    order by e.name
$$;
