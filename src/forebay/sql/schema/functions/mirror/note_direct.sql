-- grant: producer, worker

-- Append what direct writes counted, which belong to no settlement. Whoever may enqueue may tell of these, and of nothing that
-- only a settlement proves.
--
-- Parameters: p_tally, see forebay._note_tally; p_who, which process.
-- Errors: JQ001 a malformed tally, or one of something else. Locks: none.
create function forebay.note_direct(p_tally jsonb, p_who text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if (jsonb_typeof(p_tally -> 'sync') = 'string' and jsonb_typeof(p_tally -> 'counts') = 'array'
        and jsonb_array_length(p_tally -> 'counts') <= 1000 and p_who is not null
        and coalesce(p_tally -> 'breaker' ->> 'place', 'direct') = 'direct'
        and not exists (select from jsonb_array_elements(p_tally -> 'counts') c
                        where (c.value ->> 0 like 'direct.%' and (c.value ->> 3)::bigint >= 0) is not true)) is not true then
        raise exception using errcode = 'JQ001',
            message = 'a tally of direct writes needs a synchronisation, who counted, and counts named direct';
    end if;
    perform set_config('synchronous_commit', 'off', true);
    perform forebay._note_tally(p_tally, p_who);
end
$$;
