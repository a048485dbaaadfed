-- grant: worker

-- Take duties without a leader, and keep those that the caller holds, for some seconds; returns the
-- duties it holds now. Takes effect at once, also if the transaction rolls back. A leader renews in
-- time.
--
-- Parameters:
--   p_holder   the caller's number, 0 to 1048575, drawn at random by each worker
--   p_duties   0 is maintenance, any other number is polling for the group of that number
--   p_seconds  how long the duties are kept unless renewed, at most 130
--
-- Errors: JQ001 a bad holder or time.
-- Transaction: any; meant to be autocommitted.
--
-- Inside: a flag sequence is read and set outside transactions and locks nothing. If two workers
-- take a duty at the same moment, the later one is recorded; the other learns it at its next call.
-- Several workers may do the work of a duty without harm. Every worker may do a duty without a flag
-- sequence.
create function forebay.lead_v1(p_holder integer, p_duties bigint[], p_seconds double precision) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: short
as $$
declare
    v_now   constant bigint := (extract(epoch from clock_timestamp()) * 1000)::bigint;
    v_value bigint;
begin
    if (p_holder between 0 and 1048575 and p_seconds > 0 and p_seconds <= 130) is not true then
        raise exception using errcode = 'JQ001',
            message = format('holder %s for %s s: the first must be within 0 to 1048575, the second within 0 to 130',
                             coalesce(p_holder::text, 'null'), coalesce(p_seconds::text, 'null'));
    end if;
    v_value := ((v_now + p_seconds * 1000)::bigint << 20) | p_holder;
    perform set_config('synchronous_commit', 'off', true);
    -- One statement for all duties: a worker may lead a thousand groups, and renews each every few seconds. A few steps forward are
    -- nextval(), as in forebay._advance_flag(): the holder stays, and the time rises by 250 ms. More of them cost more than setval().
    return (
        select coalesce(array_agg(t.duty order by t.place), '{}')
        from (
            select d.duty, d.place, case
                when d.flag is null then null
                when d.steps between 1 and 8 then (select max(n.value) from (select nextval(d.flag) as value from generate_series(1, d.steps)) n)
                when d.steps = 0 then d.last
                else setval(d.flag, v_value) end as value
            from (
                select i.*, case when i.last & 1048575 = p_holder then (v_value - i.last + 262143999) / 262144000 end as steps
                from (select f.duty, f.place, f.flag, pg_sequence_last_value(f.flag) as last
                      from (select u.duty, u.place, forebay._leader_flag(u.duty) as flag
                            from unnest(p_duties) with ordinality u (duty, place) offset 0) f offset 0) i
                where (forebay._holder_at(i.last, v_now) <> p_holder) is not true) d
            offset 0) t);
end
$$;
