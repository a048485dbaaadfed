-- grant: producer, worker

-- Enqueue the next chunk of a backfill; returns no row when all are done. Call it until then, each
-- time in a new transaction; after a crash, call it again. Returns the number of jobs in the chunk,
-- the number in all done chunks, and the number counted at the beginning.
--
-- Example:
--   select forebay.backfill_begin('index', 'select id from document', 'id', chunk => 1) as backfill_id;
--   select * from forebay.backfill_next((select max(backfill_id) from forebay.backfill));
--
-- Errors: as forebay.backfill(); JQ040 the backfill has a token, and the chunk has other jobs than
--   were counted; JQ041 no such backfill, or another role began it.
-- Locks: the backfill; a concurrent call for the same backfill waits for its end.
-- See: docs/design/backfill.md
--
-- Inside: Invariant "a chunk and its position are one".
create function forebay.backfill_next(backfill_id bigint)
returns table (enqueued bigint, jobs_done bigint, jobs_all bigint)
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    v_chunk pg_catalog.record;
    v_found pg_catalog.record;
    v_done  pg_catalog.record;
begin
    select t.* into v_chunk from forebay.backfill_take_v1(backfill_id) t;
    if v_chunk.no is null then
        return;
    end if;
    v_found := forebay.backfill_run_v1(
        v_chunk.kind,
        pg_catalog.format(
            E'select * from (%1$s\n) chunk where chunk.%2$I <= %3$L%4$s order by chunk.%2$I',
            v_chunk.query, v_chunk.key, v_chunk.upto,
            case when v_chunk.behind is not null then pg_catalog.format(' and chunk.%I > %L', v_chunk.key, v_chunk.behind) end),
        v_chunk.options, v_chunk.key, v_chunk.is_fixed, backfill_id, v_chunk.no);
    v_done := forebay.backfill_done_v1(backfill_id, v_chunk.no, v_found.digest);
    enqueued := v_found.jobs;
    jobs_done := v_done.jobs_done;
    jobs_all := v_done.jobs_all;
    return next;
end
$$;
