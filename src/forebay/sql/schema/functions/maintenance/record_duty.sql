-- grant: worker

-- Record that a duty of maintenance fails or is behind since `p_seconds`, or, with null, that it is
-- well again. `forebay doctor` shows it. `p_name` has at most 100 characters; `p_error` is null
-- when the duty is only behind.
--
-- Errors: JQ001 no name, or seconds outside 0 to 100000000.
-- pages: 20
create function forebay.record_duty_v1(p_name text, p_seconds double precision default null, p_error text default null) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_now constant timestamptz := forebay._now();
begin
    if (length(p_name) between 1 and 100 and coalesce(p_seconds, 0) between 0 and 100000000) is not true then
        raise exception using errcode = 'JQ001',
            message = format('duty %s cannot fail for %s seconds', coalesce(quote_literal(left(p_name, 100)), 'null'), coalesce(p_seconds::text, 'null'));
    end if;
    if p_seconds is null then
        delete from forebay.duty d where d.name = p_name;
        return;
    end if;
    insert into forebay.duty as d (name, error, since, recorded_at, worker)
    values (p_name, left(p_error, 1000), v_now - make_interval(secs => p_seconds), v_now, coalesce(current_setting('application_name', true), ''))
    on conflict on constraint duty_pkey do update
    set error = excluded.error, since = least(d.since, excluded.since), recorded_at = excluded.recorded_at, worker = excluded.worker;
end
$$;
