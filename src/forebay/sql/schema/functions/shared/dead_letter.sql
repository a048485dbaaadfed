-- Write a dead letter, with the whole error history of the job in this group; returns its id.
create function forebay._write_dead_letter(
    p_group_id bigint, p_queue text, p_priority integer, p_row forebay.log, p_reason text, p_attempt integer)
returns bigint
language sql volatile
as $$
    insert into forebay.dead_letter (
        group_id, job_id, seq, reason, died_at, queue, priority, enqueued_at, expires_at, attempt, max_attempts,
        kind, args, tag, correlation_id, headers, ordering_key, unique_key, limit_key, errors)
    values (
        p_group_id, coalesce(p_row.job_id, p_row.seq), p_row.seq, p_reason, forebay._now(), p_queue, p_priority,
        p_row.enqueued_at, coalesce(p_row.expires_at, p_row.enqueued_at + interval '30 days'), p_attempt,
        p_row.max_attempts, p_row.kind, p_row.args, p_row.tag, p_row.correlation_id, p_row.headers,
        p_row.ordering_key, p_row.unique_key, (select l.limit_key from forebay.lane l where l.lane = p_row.lane limit 1),
        coalesce((select jsonb_agg(jsonb_build_object(
                             'attempt', f.attempt, 'failed_at', f.failed_at, 'outcome', f.outcome,
                             'type', f.error_type, 'message', f.message, 'traceback', f.traceback, 'worker', f.worker,
                             'max_attempts', f.max_attempts)
                         order by f.failed_at)
                  from forebay.failure f
                  where f.job_id = coalesce(p_row.job_id, p_row.seq) and f.group_id = p_group_id
                    and f.enqueued_at = p_row.enqueued_at), '[]'))
    returning dead_id
$$;
