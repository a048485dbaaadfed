-- grant: producer, worker

-- Append the counters of direct writes, which belong to no settlement. Roles that may enqueue may record these counters, but none
-- that only a settlement proves.
--
-- Parameters: p_counters, see forebay._record_counters; p_who, the process.
-- Errors: JQ001 malformed counters, counters other than those of direct writes, or a number out of range. Locks: none.
create function forebay.record_direct(p_counters jsonb, p_who text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if (jsonb_typeof(p_counters -> 'mirror') = 'string' and jsonb_typeof(p_counters -> 'counts') = 'array'
        and jsonb_array_length(p_counters -> 'counts') <= 1000 and p_who is not null
        and coalesce(p_counters -> 'breaker' ->> 'place', 'direct') = 'direct'
        and not exists (select from jsonb_array_elements(p_counters -> 'counts') c
                        where (c.value ->> 0 like 'direct.%') is not true)) is not true then
        raise exception using errcode = 'JQ001',
            message = 'counters of direct writes need a mirror, a process, and only counts whose names begin with direct';
    end if;
    perform set_config('synchronous_commit', 'off', true);
    perform forebay._record_counters(p_counters, p_who);
end
$$;
