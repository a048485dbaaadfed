-- Record how an attempt failed, or ended otherwise with an error. p_error may have the worker's maximum number of attempts.
create function forebay._record_failure(
    p_row forebay.log, p_group_id bigint, p_attempt integer, p_outcome text, p_error jsonb, p_worker text)
returns void
language sql volatile
as $$
    insert into forebay.failure (
        job_id, group_id, enqueued_at, attempt, failed_at, outcome, error_type, message, traceback, worker,
        max_attempts, cause, place)
    values (
        coalesce(p_row.job_id, p_row.seq), p_group_id, p_row.enqueued_at, p_attempt, forebay._now(), p_outcome,
        left(p_error ->> 'type', 200), left(p_error ->> 'message', 4096), left(p_error ->> 'traceback', 16384), p_worker,
        coalesce(p_row.max_attempts, (p_error ->> 'max_attempts')::integer),
        substring(p_error ->> 'cause' from '^[0-9a-f]{1,20}$'), left(p_error ->> 'place', 200))
$$;
