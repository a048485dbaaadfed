-- Put the sealed segments that may have rows of the window, p_ranges, in front of those to read, v_needed.

if p_last_seal > p_ranges[1].low then
    v_needed := array(
        select s.segment_id from forebay.seal s join forebay.segment i using (segment_id)
        where s.segment_id >= p_pos_segment and i.removed_at is null
          and s.segment_id <> all (p_unsealed)  -- Sealed since the caller looked: read once.
          and s.xid > p_ranges[1].low
        order by s.segment_id) || v_needed;
end if;
