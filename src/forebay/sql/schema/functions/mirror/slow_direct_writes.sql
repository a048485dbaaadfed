-- grant: worker

-- The fraction, 0 to 1, of the latest direct writes to the target of a mirror that were slow: of those recorded in the last two
-- seconds, by all processes. Null if none has been recorded for 15 seconds. Processes record slow ones within a second, others
-- within five.
create function forebay.slow_direct_writes(mirror text) returns double precision
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
    select case when exists (select from forebay.mirror_count c
                             where c.mirror = slow_direct_writes.mirror and c.at > forebay._now() - interval '15 seconds'
                               and c.outcome like 'direct.%')
    then (select least(1, coalesce(sum(c.count) filter (where c.outcome = 'direct.slow')::float8
                                   / nullif(sum(c.count) filter (where c.outcome <> 'direct.slow'), 0)::float8, 0))
          from forebay.mirror_count c
          where c.mirror = slow_direct_writes.mirror and c.at > forebay._now() - interval '2 seconds' and c.outcome like 'direct.%')
    end
$$;
