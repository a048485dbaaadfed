-- Append the counters of a pass or a direct write.
--
-- Parameters: p_counters, {"mirror", "counts": [[outcome, tag, priority, count], ..],
--   "breaker": {"place", "open_seconds": null for closed, "why"}, absent when there is nothing new}
--   p_who, the worker or the process. A count is 0 to 1000000000 and open_seconds 0 to 31536000, so that no sum of them overflows.
-- Errors: JQ001 another number.
create function forebay._record_counters(p_counters jsonb, p_who text) returns void
language plpgsql volatile
as $$
declare
    v_now  constant timestamptz := forebay._now();
    v_open constant jsonb := p_counters -> 'breaker';
begin
    if exists (select from jsonb_array_elements(p_counters -> 'counts') c
               where ((c.value ->> 3)::numeric between 0 and 1000000000) is not true)
       or not coalesce((v_open ->> 'open_seconds')::numeric, 0) between 0 and 31536000 then
        raise exception using errcode = 'JQ001', message = 'a count is outside 0 to 1000000000, or open_seconds outside 0 to 31536000';
    end if;
    insert into forebay.mirror_count (mirror, at, outcome, tag, priority, count)
    select left(p_counters ->> 'mirror', 200), v_now, left(c.value ->> 0, 100), left(c.value ->> 1, 200), (c.value ->> 2)::integer, (c.value ->> 3)::bigint
    from jsonb_array_elements(p_counters -> 'counts') c;
    if v_open is not null then
        insert into forebay.mirror_breaker (mirror, at, who, place, open_until, why)
        values (left(p_counters ->> 'mirror', 200), v_now, left(p_who, 200), v_open ->> 'place',
                v_now + make_interval(secs => (v_open ->> 'open_seconds')::double precision), left(v_open ->> 'why', 500));
    end if;
end
$$;
