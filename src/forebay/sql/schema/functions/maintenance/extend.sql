-- grant: worker

-- Make segments until the reserve ahead of the sequence is full, at most `p_most`; returns how
-- many. The reserve is what producers can use while no worker runs.
--
-- Errors: 55P03 another session holds a lock on the log for longer than 2 s; try again.
-- Transaction: any; the new segments are used once it commits.
-- Locks: the maintenance lock, SHARE UPDATE EXCLUSIVE on the log.
--
-- Inside: Invariant "room to write": no enqueue fails because maintenance did not run.
-- pages: 60
create function forebay.extend_v1(p_most integer default 64) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
declare
    v_rows    bigint := forebay._setting_value('segment_rows');
    v_reserve bigint := forebay._setting_value('reserve_rows');
    v_last    bigint;
    v_hi      bigint;
    v_id      bigint;
    v_made    integer := 0;
begin
    if not forebay._try_lock('maintenance') then
        return 0;
    end if;
    v_last := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    select s.segment_id, s.hi into v_id, v_hi from forebay.segment s order by s.segment_id desc limit 1;
    v_id := coalesce(v_id, -1);
    v_hi := coalesce(v_hi, 1);
    -- The very last segment ends at the end of bigint.
    while v_made < p_most and v_hi - v_last < v_reserve and v_hi < 9223372036854775807 loop
        v_rows := least(v_rows, 9223372036854775807 - v_hi);
        v_id := v_id + 1;
        perform forebay._make_segment(v_id, v_hi, v_hi + v_rows);
        v_hi := v_hi + v_rows;
        v_made := v_made + 1;
    end loop;
    return v_made;
end
$$;
