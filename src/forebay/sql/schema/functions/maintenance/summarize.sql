-- grant: worker

-- Update the block index on numbers for the segments in use; returns the number of page ranges added.
--
-- That index finds a job by its id. It learns of new pages only by a call like this one, and page ranges that it does not know
-- are read from end to end.
--
-- Errors: 55P03 when another session holds a lock on the segment, try again.
-- Locks: the summary lock; SHARE UPDATE EXCLUSIVE on the segment.
create function forebay.summarize_v1() returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    v_segment bigint;
    v_added   integer := 0;
begin
    if not forebay._try_lock('summary') then
        return 0;
    end if;
    for v_segment in
        select s.segment_id from forebay.segment s
        where s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.removed_at is null
        order by s.lo desc limit 3
    loop
        v_added := v_added + brin_summarize_new_values(format('forebay.log_%s_seq_idx', v_segment)::regclass);
    end loop;
    return v_added;
end
$$;
