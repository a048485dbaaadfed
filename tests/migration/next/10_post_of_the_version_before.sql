-- What only the version before calls.

drop function forebay.claim_v1(bigint, bigint, bigint, bigint, bigint, integer);
drop schema forebay_set_aside cascade;

-- Nobody reads or writes the column that has moved.
do $$
declare
    v_function regprocedure;
begin
    for v_function in
        select p.oid from pg_proc p
        where p.pronamespace = 'forebay'::regnamespace and p.prosrc like '%f.traceback%'
    loop
        execute replace(
            pg_get_functiondef(v_function), 'f.traceback',
            '(select t.traceback from forebay.failure_trace t
              where (t.job_id, t.group_id, t.failed_at) = (f.job_id, f.group_id, f.failed_at))');
    end loop;
end
$$;

create or replace function forebay._record_failure(
    p_row forebay.log, p_group_id bigint, p_attempt integer, p_outcome text, p_error jsonb, p_worker text)
returns void
language sql volatile
as $$
    with noted as (
        insert into forebay.failure (
            job_id, group_id, enqueued_at, attempt, failed_at, outcome, error_type, message, worker, max_attempts)
        values (
            coalesce(p_row.job_id, p_row.seq), p_group_id, p_row.enqueued_at, p_attempt, forebay._now(), p_outcome,
            left(p_error ->> 'type', 200), left(p_error ->> 'message', 4096), p_worker,
            coalesce(p_row.max_attempts, (p_error ->> 'max_attempts')::integer))
        returning job_id, group_id, failed_at)
    insert into forebay.failure_trace (job_id, group_id, failed_at, traceback)
    select n.job_id, n.group_id, n.failed_at, left(p_error ->> 'traceback', 16384) from noted n
$$;
