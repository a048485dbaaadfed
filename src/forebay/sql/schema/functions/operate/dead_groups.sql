-- grant: operator, reader

-- Dead letters that were not redriven, grouped by cause, and deliveries by endpoint too, the newest
-- death first. Null means any. Reads all dead letters, or those of one cause, queue or endpoint.
--
-- Columns:
--   kind, error_type, place  of the last error
--   reason                   that of the newest death
--   jobs                     how many dead letters
--   first_at, last_at        times of the first and the last death
--   dead_id, message         the newest dead letter, and the message of its last error
--   is_muted, muted_until    deaths of the cause are no errors in the log until then; null: until
--                            it is unmuted
--   endpoint                 of deliveries: the name of the endpoint
--   died_of                  of the newest: the child of which it died, as in forebay.flow(); with it,
--                            the cause is a consequence: redrive the child, and this job follows
--
-- See: docs/howto/dead-letters.md#group-failures-by-cause
create function forebay.dead_groups(only_queue text default null, only_kind text default null, only_cause text default null,
                                    only_endpoint text default null)
returns table (cause text, kind text, error_type text, place text, reason text, jobs bigint, first_at timestamptz, last_at timestamptz,
               dead_id bigint, message text, is_muted boolean, muted_until timestamptz, endpoint text, died_of jsonb)
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
    select g.cause, d.kind, d.errors -> -1 ->> 'type', d.place, d.reason, g.jobs, g.first_at, g.last_at, d.dead_id,
           left(d.errors -> -1 ->> 'message', 500), m.cause is not null, m.until, g.endpoint,
           forebay._died_of(d.job_id, forebay._group_name(d.group_id))
    from (select i.cause, case when i.queue = 'forebay.deliver' then i.limit_key end as endpoint, count(*) as jobs, min(i.died_at) as first_at, max(i.died_at) as last_at, max(i.dead_id) as dead_id
          from forebay.dead_letter i
          where i.redriven_at is null
            and (dead_groups.only_queue is null or i.queue = dead_groups.only_queue)
            and (dead_groups.only_kind is null or i.kind = dead_groups.only_kind)
            and (dead_groups.only_cause is null or i.cause = dead_groups.only_cause)
            and (dead_groups.only_endpoint is null or i.queue = 'forebay.deliver' and i.limit_key = dead_groups.only_endpoint)
          group by 1, 2) g
    join forebay.dead_letter d on d.dead_id = g.dead_id
    left join forebay.muted_cause m on m.cause = g.cause and (m.until > forebay._now() or m.until is null)
    order by g.last_at desc, g.cause, g.endpoint
$$;
