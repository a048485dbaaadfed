-- The rows of one lane in a window, after a position, at most p_limit, up to the one that brings their size to p_bytes; how many segments
-- were read; and the size of the rows.
--
-- Segments are chosen by their seals: sealed with X_S, a segment has only rows with an xid below X_S.
-- p_ranges are the window's transactions, see forebay._xid_ranges().
create function forebay._window(
    p_lane bigint, p_ranges forebay._xid_range[],
    p_pos_segment bigint, p_pos_xid xid8, p_pos_seq bigint, p_limit integer,
    p_unsealed bigint[], p_last_seal xid8,
    p_bytes bigint, out rows forebay.log[], out segments bigint[], out looked integer, out bytes bigint)
language plpgsql volatile
as $$
declare
    v_needed  bigint[] := p_unsealed;
    v_piece   record;
    v_segment bigint;
begin
    rows := '{}';
    segments := '{}';
    looked := 0;
    bytes := 0;
    -- include: sealed_segments
    foreach v_segment in array v_needed loop
        continue when v_segment < p_pos_segment;
        looked := looked + 1;
        execute 'select * from forebay._read_' || v_segment || '($1, $2, $3, $4, $5, $6)'
            into v_piece
            using p_lane, p_ranges,
                  case when v_segment = p_pos_segment then p_pos_xid else '0'::xid8 end,
                  case when v_segment = p_pos_segment then p_pos_seq else 0 end,
                  p_limit - cardinality(rows), p_bytes - bytes;
        -- include: add_piece
    end loop;
end
$$;


-- Should an idle cursor move although no row was found?
--
-- Yes when a writer that began after the cursor is still at work, at most once in five minutes: if the writer is rolled back, later
-- windows do not read what it left in the index. Each move costs a row and a transaction id, in every lane, so a busy writer
-- elsewhere must not cause many.
create function forebay._should_move(p_from pg_snapshot, p_now pg_snapshot, p_moved_at timestamptz) returns boolean
language plpgsql stable
as $$
begin
    -- In two steps, since an expression with a query is a statement even where the query is not evaluated.
    if pg_snapshot_xmin(p_now) = pg_snapshot_xmax(p_now)
       -- A time in the future is from before the clock was set back.
       or p_moved_at between forebay._now() - interval '5 minutes' and forebay._now() + interval '5 minutes' then
        return false;
    end if;
    return exists (select from pg_snapshot_xip(p_now) x where x >= pg_snapshot_xmax(p_from));
end
$$;


-- Is a cursor so far behind that forebay.ready_v1() reports its lane? The claim then moves it, also where the segments between are emptied
-- and leave nothing to read: otherwise polls and empty claims would not end.
create function forebay._is_old_cursor(p_from pg_snapshot) returns boolean
language sql stable
as $$
    select coalesce(pg_snapshot_xmax(p_from) < (select f.xid from forebay.seal f order by f.segment_id desc offset 1 limit 1), false)
$$;


-- Move a cursor to now over rows that no claim took; p_edge and p_low: see batch.edge_from, null for a lane without ordering keys.
create function forebay._move_idle_cursor(
    p_group_id bigint, p_lane bigint, p_no bigint, p_now pg_snapshot, p_high_seq bigint, p_handed_total bigint, p_skipped_total bigint,
    p_at timestamptz, p_edge xid8 default null, p_low bigint default null) returns void
language sql volatile
as $$
    insert into forebay.batch (
        group_id, lane, no, snap_from, pos_segment, pos_xid, pos_seq, high_seq, handed_total, skipped_total, claimed_at, edge_from, low_from)
    values (p_group_id, p_lane, coalesce(p_no, 0) + 1, p_now, 0, '0', 0, coalesce(p_high_seq, 0), coalesce(p_handed_total, 0),
            coalesce(p_skipped_total, 0), p_at, p_edge, p_low)
$$;
