-- grant: producer, worker

-- Enqueue the next chunk of a backfill, in the caller's transaction; no row when all chunks are done.
--
-- Invariant "a chunk and its position are one": docs/design/backfill.md. Call it until it returns no row, each time in a
-- separate transaction; call it again after a crash.
--
-- Returns the number of jobs in this chunk, the number of jobs in all done chunks, and the number counted at the beginning.
-- Errors: as forebay.backfill; JQ040 the jobs of the chunk differ from those counted; JQ041 no such backfill, or that of another login or role.
-- Locks: the backfill.
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
        v_chunk.options, v_chunk.key, v_chunk.is_fixed);
    v_done := forebay.backfill_done_v1(backfill_id, v_chunk.no, v_found.jobs, v_found.digest);
    enqueued := v_found.jobs;
    jobs_done := v_done.jobs_done;
    jobs_all := v_done.jobs_all;
    return next;
end
$$;
