-- Delete old decisions: past 30 days, or beyond the newest 10,000 of their schedule. Never one that is at or after decided_to, nor one
-- whose job the next decision looks at.
create function forebay._trim_occurrences(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
-- planner: in order
as $$
declare
    v_gone tid[];
    v_seen integer;
    v_id   bigint;
    v_at   timestamptz;
begin
    select array_agg(o.ctid) filter (where o.is_old), count(*), max(o.schedule_id), (array_agg(o.scheduled_for order by o.schedule_id desc, o.scheduled_for desc))[1]
    into v_gone, v_seen, v_id, v_at
    from (select i.ctid, i.schedule_id, i.scheduled_for,
                 i.scheduled_for < s.decided_to and (not i.is_open or s.overlap = 'allow')
                 and (i.decided_at < forebay._now() - interval '30 days' or i.occurrence <= s.decisions - 10000) as is_old
          from (select o.ctid, o.* from forebay.occurrence o
                where (o.schedule_id, o.scheduled_for)
                      > (coalesce((p_after::jsonb ->> 0)::bigint, 0), coalesce((p_after::jsonb ->> 1)::timestamptz, '-infinity'))
                order by o.schedule_id, o.scheduled_for limit p_most) i
          cross join lateral (select * from forebay.schedule s where s.schedule_id = i.schedule_id limit 1) s) o;
    delete from forebay.occurrence o where o.ctid = any (v_gone);
    get diagnostics rows = row_count;
    next := case when v_seen >= p_most then jsonb_build_array(v_id, v_at) end;
end
$$;
