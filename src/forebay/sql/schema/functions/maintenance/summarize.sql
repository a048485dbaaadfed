-- grant: worker

-- Update the block index that finds jobs by their number, for one segment, the newest first:
-- `added` is the number of ranges added, and `next` is `p_after` of the call that continues, or
-- null when all were looked at. Without it, the cost of inspecting jobs grows.
--
-- Errors: 55P03 another session holds a lock on the segment, try again.
-- Transaction: any; meant to be autocommitted.
-- Locks: the summary lock, SHARE UPDATE EXCLUSIVE on the segment.
--
-- Inside: the index learns of new pages only by a call like this one, and page ranges that it does
-- not know are read from end to end.
-- pages: 200
create function forebay.summarize_v1(p_after bigint default null, out added integer, out next bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    v_segment bigint;
begin
    added := 0;
    if not forebay._try_lock('summary') then
        return;
    end if;
    select s.segment_id into v_segment from forebay.segment s
    where s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.removed_at is null
      and s.segment_id < coalesce(p_after, 9223372036854775807)
    order by s.lo desc limit 1;
    if found then
        added := brin_summarize_new_values(format('forebay.log_%s_seq_idx', v_segment)::regclass);
        next := v_segment;
    end if;
end
$$;
