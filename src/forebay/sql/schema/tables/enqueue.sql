-- A job that is to be enqueued, decoded.
create type forebay._job_input as (
    queue text, priority integer, delay double precision, run_at timestamptz, expires_at timestamptz, {job types});
