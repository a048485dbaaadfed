-- Fold counts, and delete old samples, breaker records and audits; returns the number of rows deleted.
--
-- Invariant: the sum of a mirror's counts does not change.
create function forebay._trim_mirrors() returns bigint
language plpgsql volatile
as $$
declare
    v_now  constant timestamptz := forebay._now();
    v_days constant interval := make_interval(days => forebay._setting_value('retention_days')::integer);
    v_rows bigint;
    v_all  bigint := 0;
begin
    with gone as (
        delete from forebay.mirror_count c
        where c.level = 0 and c.at < date_trunc('minute', v_now - interval '10 minutes') returning c.*),
    kept as (
        insert into forebay.mirror_count (mirror, at, level, outcome, tag, priority, count)
        select g.mirror, date_trunc('minute', g.at), 1, g.outcome, g.tag, g.priority, sum(g.count) from gone g group by 1, 2, 4, 5, 6)
    select count(*) into v_rows from gone;
    v_all := v_all + v_rows;
    with gone as (
        delete from forebay.mirror_count c
        where c.level = 1 and c.at < date_trunc('hour', v_now - interval '1 day') returning c.*),
    kept as (
        insert into forebay.mirror_count (mirror, at, level, outcome, tag, priority, count)
        select g.mirror, date_trunc('hour', g.at), 2, g.outcome, g.tag, g.priority, sum(g.count) from gone g group by 1, 2, 4, 5, 6)
    select count(*) into v_rows from gone;
    v_all := v_all + v_rows;
    if exists (select from forebay.mirror_count c where c.level = 2 and c.at < v_now - v_days) then
        with gone as (
            delete from forebay.mirror_count c
            where c.level = 3 or (c.level = 2 and c.at < v_now - v_days) returning c.*),
        kept as (
            insert into forebay.mirror_count (mirror, at, level, outcome, tag, priority, count)
            select g.mirror, '-infinity', 3, g.outcome, g.tag, g.priority, sum(g.count) from gone g group by 1, 4, 5, 6)
        select count(*) into v_rows from gone;
        v_all := v_all + v_rows;
    end if;
    delete from forebay.mirror_sample s where s.at < v_now - interval '2 days';
    get diagnostics v_rows = row_count;
    v_all := v_all + v_rows;
    delete from forebay.mirror_breaker b where b.at < v_now - interval '2 days';
    get diagnostics v_rows = row_count;
    v_all := v_all + v_rows;
    delete from forebay.mirror_audit a where a.ended_at < v_now - greatest(interval '365 days', v_days);
    get diagnostics v_rows = row_count;
    return v_all + v_rows;
end
$$;
