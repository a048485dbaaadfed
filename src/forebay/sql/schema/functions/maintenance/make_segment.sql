-- Create one segment: its table, its indexes, its functions, its registry row.
--
-- CREATE TABLE (LIKE) + CHECK + ATTACH takes SHARE UPDATE EXCLUSIVE on the log, which waits for no
-- reader or writer (PARTITION OF would wait for all of them).
--
-- Locks: the caller holds the maintenance lock.
create function forebay._make_segment(p_segment_id bigint, p_lo bigint, p_hi bigint) returns void
language plpgsql volatile
as $$
declare
    v_leaf text := format('forebay.log_%s', p_segment_id);
begin
    execute format(
        'create table %s (like forebay.log including defaults, constraint seq_range check (seq >= %s and seq < %s))',
        v_leaf, p_lo, p_hi);
    execute format('create index on %s (lane, xid, seq)', v_leaf);
    execute format('create index on %s (job_id) where job_id is not null', v_leaf);
    execute format('create index on %s (expires_at, seq) where expires_at is not null', v_leaf);
    execute format('create index on %s (lane, seq) where ordering_key is not null', v_leaf);
    execute format('create index on %s using brin (seq) with (pages_per_range = 32)', v_leaf);
    execute format('revoke all on %s from public', v_leaf);
    execute format('alter table %s replica identity full', v_leaf);  -- Attaching does not pass it on.
    execute format('alter table forebay.log attach partition %s for values from (%s) to (%s)', v_leaf, p_lo, p_hi);
    -- It spared the attachment a scan of all rows; if kept, each INSERT would parse it again.
    execute format('alter table %s drop constraint seq_range', v_leaf);

    perform forebay._make_segment_functions(p_segment_id, p_hi);
    insert into forebay.segment (segment_id, lo, hi, created_at)
    values (p_segment_id, p_lo, p_hi, forebay._now());
end
$$;
