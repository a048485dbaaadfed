-- grant: producer, worker

-- Count what forebay.backfill with the same parameters would enqueue. Enqueues nothing.
--
-- Columns:
--   token                   identifies exactly these jobs, with this kind and these options
--   jobs, bytes             the number of jobs, and the bytes of their arguments as JSON
--   seconds                 how long enqueuing them would take: the function reads the query once,
--                           and enqueues and rolls back up to 2,000 of the jobs. Null in a
--                           read-only transaction, and if the queue is full
--   waiting, waiting_alike  jobs that already wait in the queue, ready or scheduled, for its
--                           slowest group; those of them with the same priority. Each is visited
--   queue                   the queue of the jobs
--
-- Errors: as forebay.backfill
create function forebay.backfill_plan(kind text, query text, options jsonb default '{}')
returns table (token text, jobs bigint, bytes bigint, seconds double precision, waiting bigint, waiting_alike bigint, queue text)
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    v_begun   pg_catalog.timestamptz := pg_catalog.clock_timestamp();
    v_count   pg_catalog.record;
    v_reading pg_catalog.float8;
    v_some    pg_catalog.int8;
begin
    v_count := forebay.backfill_count_v1(query);
    v_reading := pg_catalog.date_part('epoch'::pg_catalog.text, pg_catalog.clock_timestamp() operator(pg_catalog.-) v_begun);
    token := forebay.backfill_token_v1(kind, options, v_count.jobs, v_count.digest);
    jobs := v_count.jobs;
    bytes := v_count.bytes;
    begin
        v_begun := pg_catalog.clock_timestamp();
        v_some := (forebay.backfill_run_v1(kind, pg_catalog.concat(E'select * from (', query, E'\n) sample limit 2000'), options, null, false)).jobs;
        seconds := pg_catalog.date_part('epoch'::pg_catalog.text, pg_catalog.clock_timestamp() operator(pg_catalog.-) v_begun);
        raise exception using errcode = 'ZF000';
    exception
        when sqlstate 'ZF000' then  -- Raised to roll back.
            seconds := case when v_some operator(pg_catalog.=) 0::pg_catalog.int8 then 0.0::pg_catalog.float8
                            -- Operators written this way have no precedence.
                            else v_reading operator(pg_catalog.+)
                                 (seconds operator(pg_catalog.*) (jobs::pg_catalog.float8 operator(pg_catalog./) v_some::pg_catalog.float8)) end;
        when read_only_sql_transaction or configuration_limit_exceeded then
            seconds := null;
    end;
    select w.waiting, w.waiting_alike, w.queue into waiting, waiting_alike, queue from forebay.backfill_waiting_v1(kind, options) w;
    return next;
end
$$;
