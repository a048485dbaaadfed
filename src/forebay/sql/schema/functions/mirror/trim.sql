-- Add up old counts, the oldest first; returns the number of rows added up.
--
-- Invariant: the sum of a mirror's counts does not change, except that it stops at the end of bigint.
create function forebay._trim_mirror_counts(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_now   constant timestamptz := forebay._now();
    v_level smallint := coalesce((p_after::jsonb ->> 0)::smallint, 0);
    v_from  timestamptz := coalesce((p_after::jsonb ->> 1)::timestamptz, '-infinity');
    v_before timestamptz;
    v_at    timestamptz;
begin
    v_before := case v_level when 0 then date_trunc('minute', v_now - interval '10 minutes')
                             when 1 then date_trunc('hour', v_now - interval '1 day')
                             else v_now - forebay._retention(1) end;
    with gone as (
        delete from forebay.mirror_count c
        where c.ctid = any (array(
            select o.ctid from forebay.mirror_count o
            where o.level = v_level and o.at >= v_from and o.at < v_before order by o.at limit p_most))
        returning c.*),
    added as (
        select g.mirror, case v_level when 0 then date_trunc('minute', g.at) when 1 then date_trunc('hour', g.at) else '-infinity' end as at,
               g.outcome, g.tag, g.priority, least(sum(g.count), 9223372036854775807)::bigint as count
        from gone g group by 1, 2, 3, 4, 5),
    kept as (
        insert into forebay.mirror_count as c (mirror, at, level, outcome, tag, priority, count)
        select a.mirror, a.at, v_level + 1, a.outcome, a.tag, a.priority, a.count from added a
        on conflict (mirror, outcome, tag, priority) where level = 3
        do update set count = least(c.count::numeric + excluded.count, 9223372036854775807)::bigint)
    select count(*), max(g.at) into rows, v_at from gone g;
    next := case when rows >= p_most then jsonb_build_array(v_level, v_at)
                 when v_level < 2 then jsonb_build_array(v_level + 1, null) end;
end
$$;


-- Delete samples of waiting jobs.
create function forebay._trim_mirror_samples(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time('mirror_sample', 'at', forebay._now() - interval '2 days', p_after, p_most)
$$;


-- Delete records of circuit breakers.
create function forebay._trim_mirror_breakers(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time('mirror_breaker', 'at', forebay._now() - interval '2 days', p_after, p_most)
$$;


-- Delete records of audits.
create function forebay._trim_mirror_audits(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time(
        'mirror_audit', 'ended_at', forebay._now() - greatest(interval '365 days', forebay._retention(1)), p_after, p_most)
$$;
