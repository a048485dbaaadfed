-- The rows of one keyed lane in a window, in the order of their numbers; see forebay._window().
--
-- Late are transactions up to the window's edge that had not ended at its start: their numbers may be below p_low, and their
-- segments sealed before its start.
create function forebay._window_keyed(
    p_lane bigint, p_from pg_snapshot, p_low bigint, p_edge xid8, p_to pg_snapshot,
    p_pos_segment bigint, p_pos_seq bigint, p_limit integer, p_unsealed bigint[], p_last_seal xid8,
    p_bytes bigint, out rows forebay.log[], out segments bigint[], out looked integer, out bytes bigint)
language plpgsql volatile
as $$
declare
    v_needed  bigint[] := p_unsealed;
    v_piece   record;
    v_segment bigint;
    v_xmax    constant xid8 := pg_snapshot_xmax(p_from);
    v_late    xid8[] := '{}';
begin
    rows := '{}';
    segments := '{}';
    looked := 0;
    bytes := 0;
    v_late := array(
        select x.xid
        from (select pg_snapshot_xip(p_from) as xid
              union
              select i::text::xid8 from generate_series(v_xmax::text::bigint, p_edge::text::bigint) i) x
        where pg_visible_in_snapshot(x.xid, p_to)
        order by x.xid);
    if p_last_seal > v_xmax or p_last_seal > v_late[1] then
        v_needed := array(
            select s.segment_id from forebay.seal s join forebay.segment i using (segment_id)
            where s.segment_id >= p_pos_segment and i.removed_at is null
              and s.segment_id <> all (p_unsealed)
              and (s.xid > v_xmax or s.xid > v_late[1])
            order by s.segment_id) || v_needed;
    end if;
    foreach v_segment in array v_needed loop
        continue when v_segment < p_pos_segment;
        looked := looked + 1;
        execute 'select * from forebay._read_keyed_' || v_segment || '($1, $2, $3, $4, $5, $6, $7, $8)'
            into v_piece
            using p_lane, p_from, p_low, p_to, v_late, p_pos_seq, p_limit - cardinality(rows), p_bytes - bytes;
        -- include: add_piece
    end loop;
end
$$;
