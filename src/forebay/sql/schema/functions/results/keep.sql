-- The return value of a handler, or the problem with it. A value that is too large is not a failure: the job is done, and its result has
-- the reason.
create function forebay._bounded_result(p_kept jsonb, out value jsonb, out problem text)
language plpgsql stable
as $$
declare
    v_most  constant bigint := forebay._setting_value('result_bytes_max');
    v_bytes constant bigint := octet_length((p_kept -> 'value')::text);
begin
    value := p_kept -> 'value';
    problem := left(p_kept ->> 'problem', 1000);
    if value is null and problem is null then
        problem := 'nothing was sent';
    elsif problem is not null then
        value := null;
    elsif v_bytes > v_most then
        value := null;
        problem := format('%s bytes, more than result_bytes_max %s', v_bytes, v_most);
    end if;
end
$$;


-- Keep the return value of a handler, for some seconds; without them, as long as the log keeps ended jobs by age, and for an hour at least.
create function forebay._keep_result(p_row forebay.log, p_group_id bigint, p_kept jsonb) returns void
language plpgsql volatile
as $$
declare
    v_result record := forebay._bounded_result(p_kept);
begin
    insert into forebay.result (job_id, group_id, enqueued_at, kept_at, kept_until, value, problem)
    values (coalesce(p_row.job_id, p_row.seq), p_group_id, p_row.enqueued_at, forebay._now(),
            forebay._now() + coalesce(make_interval(secs => least((p_kept ->> 'seconds')::double precision, case when p_kept ->> 'seconds' is not null then 315360000 end)),
                                      greatest(forebay._retention(1), interval '1 hour')),
            v_result.value, v_result.problem);
end
$$;


-- Wake callers that wait for a job's end. The conditions are those of the workers' wake-up; waiting callers also poll from time
-- to time.
create function forebay._announce_ended(p_job_id bigint) returns void
language plpgsql volatile
as $$
begin
    if forebay._is_ahead(pg_sequence_last_value('forebay.result_wakeup'))
       and forebay._may_notify() then
        perform pg_notify('forebay_result', p_job_id::text);
    end if;
end
$$;
