-- grant: operator

-- Delete dead letters that died longer ago than `age`, of one queue, one cause, or all, and count
-- them for forebay.dead_summary(); returns how many. Ordering keys that they hold are free. A
-- letter whose key waits for the job that it was redriven as stays.
--
-- Errors: JQ001 a negative, too long or missing age.
create function forebay.purge_dead(age interval, queue text default null, cause text default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_count bigint := 0;
    v_queue text;
begin
    if age is null or age < interval '0' or age > interval '100 years' then
        raise exception using errcode = 'JQ001', column = 'age',
            message = format('age %s is negative, longer than a hundred years or missing', coalesce(age::text, 'null')),
            hint = 'Give the minimum age of a dead letter, for example 30 days.';
    end if;
    for v_queue in
        select distinct d.queue from forebay.dead_letter d
        where d.died_at <= forebay._now() - age and (purge_dead.queue is null or d.queue = purge_dead.queue)
          and (purge_dead.cause is null or d.cause = purge_dead.cause)
        order by 1
    loop
        v_count := v_count + forebay._delete_dead(v_queue, forebay._now() - age, null, purge_dead.cause, true);
    end loop;
    if v_count > 0 then
        perform forebay._record_event('dead.purge', purge_dead.queue, p_new => jsonb_strip_nulls(jsonb_build_object('age', age::text, 'cause', purge_dead.cause)), p_count => v_count);
    end if;
    return v_count;
end
$$;
