-- Runs of jobs with limit keys of one lane in a window, after a position; see forebay._window(). is_more: there may be more.
create function forebay._window_limited(
    p_lane bigint, p_ranges forebay._xid_range[], p_pos_segment bigint, p_pos_xid xid8, p_pos_seq bigint, p_most integer,
    p_unsealed bigint[], p_last_seal xid8, out items forebay._limit_item[], out looked integer, out is_more boolean)
language plpgsql volatile
as $$
declare
    v_needed  bigint[] := p_unsealed;
    v_piece   forebay._limit_item[];
    v_last    forebay._limit_item;
    v_segment bigint;
    v_xid     xid8;
    v_seq     bigint;
    v_rounds  integer := 0;
begin
    items := '{}';
    looked := 0;
    is_more := false;
    -- include: sealed_segments
    foreach v_segment in array v_needed loop
        continue when v_segment < p_pos_segment;
        looked := looked + 1;
        v_xid := case when v_segment = p_pos_segment then p_pos_xid else '0'::xid8 end;
        v_seq := case when v_segment = p_pos_segment then p_pos_seq else 0 end;
        loop
            -- Long runs are many rows and few items: what was read so far is enough then.
            is_more := cardinality(items) >= p_most or v_rounds >= greatest(4, 4000 / p_most);
            exit when is_more;
            execute 'select forebay._read_limited_' || v_segment || '($1, $2, $3, $4, $5, $6)'
                into v_piece using v_segment, p_lane, p_ranges, v_xid, v_seq, p_most;
            items := items || v_piece;
            -- Fewer jobs than were asked for: the segment has no more in the window.
            exit when (select coalesce(sum(greatest(u.jobs, 1)), 0) from unnest(v_piece) u) < p_most;
            v_rounds := v_rounds + 1;
            v_last := v_piece[cardinality(v_piece)];
            v_xid := v_last.xid;
            v_seq := v_last.seq_to;
        end loop;
        exit when is_more;
    end loop;
end
$$;
