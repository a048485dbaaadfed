-- grant: worker

-- Whether a process has tried to write to the target of a mirror directly in the last 15 seconds. Processes
-- record what they tried every five.
create function forebay.has_direct_writes(mirror text) returns boolean
language sql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
    select exists (select from forebay.mirror_count c
                   where c.mirror = has_direct_writes.mirror and c.at > forebay._now() - interval '15 seconds'
                     and c.outcome like 'direct.%')
$$;
