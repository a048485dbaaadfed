-- grant: producer, worker

-- Record counters of direct writes, which belong to no settlement: `{"mirror": name, "counts":
-- [[outcome, tag, priority, count], ..]}`. With `"breaker": {"place", "open_seconds", "why"}`, also
-- record that a breaker has opened for that time, or closed (null). `p_who` names the process.
-- Roles that may enqueue may record these counters, but none that only a settlement proves.
--
-- Errors: JQ001 malformed counters, a number out of range, or an outcome that does not begin with
--   `direct.`.
-- Transaction: any; commits asynchronously.
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
