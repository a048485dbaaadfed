-- grant: operator, reader

-- Dead letters that were not redriven, grouped by cause, the newest death first. Null means any.
-- Reads all dead letters, or those of one cause or queue.
--
-- Columns:
--   kind, error_type, place  of the last error
--   reason                   that of the newest death
--   jobs                     how many dead letters
--   first_at, last_at        times of the first and the last death
--   dead_id, message         the newest dead letter, and the message of its last error
--   is_muted, muted_until    deaths of the cause are no errors in the log until then; null: until
--                            it is unmuted
--
-- See: docs/howto/dead-letters.md#group-failures-by-cause
create function forebay.dead_groups(only_queue text default null, only_kind text default null, only_cause text default null)
returns table (cause text, kind text, error_type text, place text, reason text, jobs bigint, first_at timestamptz, last_at timestamptz,
               dead_id bigint, message text, is_muted boolean, muted_until timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    select g.cause, d.kind, d.errors -> -1 ->> 'type', d.place, d.reason, g.jobs, g.first_at, g.last_at, d.dead_id,
           left(d.errors -> -1 ->> 'message', 500), m.cause is not null, m.until
    from (select i.cause, count(*) as jobs, min(i.died_at) as first_at, max(i.died_at) as last_at, max(i.dead_id) as dead_id
          from forebay.dead_letter i
          where i.redriven_at is null
            and (dead_groups.only_queue is null or i.queue = dead_groups.only_queue)
            and (dead_groups.only_kind is null or i.kind = dead_groups.only_kind)
            and (dead_groups.only_cause is null or i.cause = dead_groups.only_cause)
          group by i.cause) g
    join forebay.dead_letter d on d.dead_id = g.dead_id
    left join forebay.muted_cause m on m.cause = g.cause and (m.until > forebay._now() or m.until is null)
    order by g.last_at desc, g.cause
$$;
