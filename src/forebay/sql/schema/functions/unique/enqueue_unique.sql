-- grant: producer, worker

-- Enqueue one job under a unique key. `unique_as` is one of:
--
-- Modes:
--   {"once": key}        no new job while a job with the key waits or runs
--   {"idempotent": key, "request": value}
--                        the same; kind and arguments must also be equal, or kind and `request`:
--                        the arguments in a form in which equal ones are the same text
--   {"coalesce": key}    no new job while a job with the key waits
--   {"replace": key}     the new job replaces a waiting job with the key
--   {"debounce": key, "wait": s, "max_wait": s}
--                        the same; the job starts `wait` seconds after the last call, at most
--                        `max_wait` after the first
--   {"throttle": key, "period": s}
--                        no new job within `period` seconds of the last new one
--
-- Add `"on_busy": "raise"` to get an error instead of waiting for another transaction. A key has 1
-- to 200 characters and belongs to its queue and uniqueness mode. The other parameters are those of
-- forebay.enqueue(); a debounce takes no `delay` or `run_at`.
--
-- Columns:
--   job_id, is_new  the new or the existing job
--   replaced        the waiting job that the new one replaces
--
-- Example:
--   select job_id, is_new
--   from forebay.enqueue_unique('index', '{"id": 1}', '{"coalesce": "document 1"}');
--
-- Errors: JQ001 a bad option, JQ002 and JQ003 args too large or too deep, JQ004 another open
--   transaction is taking the key (`on_busy` raise), JQ005 an idempotency key belongs to another
--   request; 40001 in a REPEATABLE READ transaction that cannot see the key's newest job; 53400 the
--   queue is full. After an error nothing is written.
-- Locks: the key's newest row, until the transaction ends. Waits for another open transaction that
--   is enqueuing the key's next job; no claim waits for it.
-- See: docs/howto/unique-jobs.md
--
-- Inside: Invariants "one generation", "commit decides".
-- pages: 150
create function forebay.enqueue_unique(
    kind text, args jsonb, unique_as jsonb, queue text default null, priority integer default 100,
    delay interval default null, run_at timestamptz default null, expires_at timestamptz default null,
    {options parameters}, out job_id bigint, out is_new boolean, out replaced bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_job     forebay._job_input;
    v_problem text;
    v_made    record;
begin
    enqueue_unique.delay := forebay._delay_from_now(enqueue_unique.delay);
    if pg_sequence_last_value('forebay.kind_keys_seq') is not null then
        select d.limit_key, d.ordering_key into enqueue_unique.limit_key, enqueue_unique.ordering_key
        from forebay._declared_keys(
            enqueue_unique.kind, enqueue_unique.args, enqueue_unique.queue, enqueue_unique.limit_key, enqueue_unique.ordering_key,
            enqueue_unique.unique_as) d;
    end if;
    enqueue_unique.queue := coalesce(enqueue_unique.queue, forebay.queue_of(enqueue_unique.kind), 'default');
    v_job := row(enqueue_unique.queue, enqueue_unique.priority, null, enqueue_unique.run_at, enqueue_unique.expires_at,
                 {job of enqueue_unique})::forebay._job_input;
    v_problem := coalesce(
        forebay._job_problem(v_job, enqueue_unique.delay),
        forebay._unique_problem(enqueue_unique.unique_as, enqueue_unique.delay, enqueue_unique.run_at, enqueue_unique.expires_at));
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = v_problem,
            hint = 'Nothing was enqueued. See the function forebay.enqueue_unique in the reference.';
    end if;
    perform forebay._check_args(enqueue_unique.args, null);
    select u.* into v_made
    from forebay._enqueue_unique(
        v_job, coalesce(enqueue_unique.run_at, forebay._now() + enqueue_unique.delay), enqueue_unique.unique_as, '') u;
    job_id := v_made.job_id;
    is_new := v_made.is_new;
    replaced := v_made.replaced;
end
$$;
