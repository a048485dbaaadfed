-- One job of a bulk enqueue, decoded.
create type forebay._job_input as (
    kind text, args jsonb, queue text, priority integer, delay double precision, run_at timestamptz,
    expires_at timestamptz, max_attempts integer, tag text, correlation_id text, headers jsonb, ordering_key text, limit_key text);
