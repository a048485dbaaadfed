-- Ordering keys: of a key's jobs one at a time, in order. See docs/design/ordering.md.
--
-- Jobs with keys have lanes of their own. A claim of such a lane takes a *turn* of each key that is free: some of its jobs,
-- in order, for one holder. Jobs of keys that are not free are *parked*: the cursor has passed them, a small row says
-- which. When a turn is over, a *token*, a row of the log without a kind, tells the group's claims to look at the key again.


-- How a job of a keyed lane is handed out: as any other, with its ordering key at the end.
create function forebay._keyed_json(p_row forebay.log) returns text
language sql stable
as $$
    select '[' || p_row.seq || ',"' || p_row.kind || '",' || (date_part('epoch', p_row.enqueued_at) * 1000000)::bigint || ','
           || p_row.args || ',' || ltrim(json_build_array(
               coalesce(p_row.job_id, p_row.seq), (date_part('epoch', p_row.expires_at) * 1000000)::bigint, p_row.attempt,
               p_row.max_attempts, p_row.pauses, p_row.tag, p_row.correlation_id, p_row.headers, p_row.ordering_key)::text, '[')
$$;


-- forebay.claim_v1() of a keyed lane.
create function forebay._claim_keyed(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer)
returns text
language plpgsql volatile
as $$
declare
    v_rows forebay.log[] := forebay._take_keyed(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit);
begin
    return (select string_agg(forebay._keyed_json(r.job), ',' order by r.nr)
            from (select unnest(v_rows) as job, generate_subscripts(v_rows, 1) as nr) r);
end
$$;


-- The rows of one keyed lane in a window, in the order of their numbers; see forebay._window().
--
-- Late are transactions up to the window's edge that had not ended at its start: their numbers may be below p_low.
create function forebay._window_keyed(
    p_lane bigint, p_from pg_snapshot, p_low bigint, p_edge xid8, p_to pg_snapshot,
    p_pos_segment bigint, p_pos_seq bigint, p_limit integer, p_unsealed bigint[], p_last_seal xid8,
    out rows forebay.log[], out segments bigint[], out looked integer)
language plpgsql volatile
as $$
declare
    v_needed  bigint[] := p_unsealed;
    v_piece   forebay.log[];
    v_segment bigint;
    v_xmax    constant xid8 := pg_snapshot_xmax(p_from);
    v_late    xid8[] := '{}';
begin
    rows := '{}';
    segments := '{}';
    looked := 0;
    if p_low > 0 then
        v_late := array(
            select x.xid
            from (select pg_snapshot_xip(p_from) as xid
                  union
                  select i::text::xid8 from generate_series(v_xmax::text::bigint, p_edge::text::bigint) i) x
            where pg_visible_in_snapshot(x.xid, p_to)
            order by x.xid);
    end if;
    if p_last_seal > v_xmax or p_last_seal > v_late[1] then
        v_needed := array(
            select s.segment_id from forebay.seal s
            where s.segment_id >= p_pos_segment
              and s.segment_id <> all (p_unsealed)
              and (s.xid > v_xmax or s.xid > v_late[1])
            order by s.segment_id) || v_needed;
    end if;
    foreach v_segment in array v_needed loop
        continue when v_segment < p_pos_segment;
        looked := looked + 1;
        execute 'select forebay._read_keyed_' || v_segment || '($1, $2, $3, $4, $5, $6, $7)'
            into v_piece
            using p_lane, p_from, p_low, p_to, v_late, p_pos_seq, p_limit - cardinality(rows);
        if cardinality(v_piece) > 0 then
            rows := rows || v_piece;
            segments := segments || array_fill(v_segment, array[cardinality(v_piece)]);
            exit when cardinality(rows) >= p_limit;
        end if;
    end loop;
end
$$;


-- Rows of keyed jobs by their places, in no order.
create function forebay._fetch(p_lanes bigint[], p_seqs bigint[]) returns forebay.log[]
language plpgsql stable
as $$
declare
    v_rows  forebay.log[] := '{}';
    v_part  forebay.log[];
    v_piece record;
begin
    for v_piece in
        select s.segment_id, array_agg(u.lane) as lanes, array_agg(u.seq) as seqs
        from unnest(p_lanes, p_seqs) as u (lane, seq)
        cross join lateral (select i.segment_id from forebay.segment i where i.lo <= u.seq order by i.lo desc limit 1) s
        group by s.segment_id
    loop
        execute 'select forebay._fetch_' || v_piece.segment_id || '($1, $2)' into v_part using v_piece.lanes, v_piece.seqs;
        v_rows := v_rows || v_part;
    end loop;
    return v_rows;
end
$$;


-- Where keys stand for a group: one row for each.
--
-- is_busy: jobs of its newest turn have not ended. head: the id of a job that has to come first and is on its way, as a
-- retry for example. waiting_*: what was kept back, in order; the first is next, before all that is parked.
create function forebay._key_states(p_group_id bigint, p_keys text[])
returns table (ordering_key text, no bigint, mark bigint, is_busy boolean, head bigint, waiting_lanes bigint[], waiting_seqs bigint[])
language sql stable
as $$
    with turn as materialized (
        select k.key, t.no, t.lease_id, t.claim_no, t.offsets, t.jobs, t.mark, t.rest_lanes, t.rest_seqs
        from unnest(p_keys) k (key)
        left join lateral (select * from forebay.key_turn i
                           where i.group_id = p_group_id and i.ordering_key = k.key
                           order by i.no desc limit 1) t on true
    ), flush as materialized (
        select s.lease_id, s.claim_no, s.offsets, s.outcomes
        from (select distinct t.lease_id, t.claim_no from turn t where t.lease_id is not null) b
        join forebay.settlement s on s.lease_id = b.lease_id and s.claim_no = b.claim_no
    ), ended as materialized (
        select f.lease_id, f.claim_no, u.place, coalesce(u.code, 'd') as code
        from flush f, unnest(f.offsets, f.outcomes) u (place, code)
    ), open as materialized (
        -- Batches that are not settled as a whole. One that was removed meanwhile ended long ago.
        select b.lease_id, b.claim_no
        from (select distinct t.lease_id, t.claim_no from turn t where t.lease_id is not null) i
        join forebay.batch b on b.lease_id = i.lease_id and b.claim_no = i.claim_no
        where not exists (select from flush f where f.lease_id = i.lease_id and f.claim_no = i.claim_no and f.offsets is null)
    ), partial as materialized (
        select t.key, t.lease_id, t.claim_no, o.place, o.job
        from open i join turn t on t.lease_id = i.lease_id and t.claim_no = i.claim_no, unnest(t.offsets, t.jobs) o (place, job)
    ), state as (
        select p.key, bool_or(e.code is null) as is_busy,
               min(p.job) filter (where e.code in ('r', 'l', 's', 'u', 'h')) as head,
               array_agg(p.place order by p.place) filter (where e.code = 'k') as kept, p.lease_id, p.claim_no
        from partial p
        left join ended e on e.lease_id = p.lease_id and e.claim_no = p.claim_no and e.place = p.place
        group by p.key, p.lease_id, p.claim_no
    )
    select t.key, coalesce(t.no, 0), coalesce(t.mark, 0), coalesce(s.is_busy, false), s.head,
           case when s.kept is null then coalesce(t.rest_lanes, '{}')
                else array(select coalesce(b.lanes[o], b.lane) from forebay.batch b, unnest(s.kept) o
                           where b.lease_id = s.lease_id and b.claim_no = s.claim_no order by o) || coalesce(t.rest_lanes, '{}') end,
           case when s.kept is null then coalesce(t.rest_seqs, '{}')
                else array(select b.seqs[o] from forebay.batch b, unnest(s.kept) o
                           where b.lease_id = s.lease_id and b.claim_no = s.claim_no order by o) || coalesce(t.rest_seqs, '{}') end
    from turn t
    left join state s on s.key = t.key
$$;


-- The claim of a keyed lane: what forebay._take() is for the others.
--
-- Invariant "order by key": of a group's jobs with one key, those of at most one turn are in live batches; a turn is the
-- first of what waits, in the order: what was kept back, what is parked, what the cursor has just come to. All turns of
-- a group are decided under one lock. Whatever a key has waiting, something will make a claim look at it again: an open
-- turn, a job on its way to one of the group's lanes, or a token that was not read yet.
create function forebay._take_keyed(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer)
returns forebay.log[]
language plpgsql volatile
set enable_nestloop = off  -- Arrays of a thousand are joined with each other; a look-up by index stays one.
as $$
declare
    c          record;
    v_low      bigint;
    v_from     pg_snapshot;
    v_to       pg_snapshot;
    v_limit    integer := p_limit;
    v_window   record;
    v_rows     forebay.log[] := '{}';
    v_segments bigint[] := '{}';
    v_looked   integer := 0;
    v_old      integer := 0;
    v_count    integer;
    v_used_up  boolean;
    v_found    record;                   -- what may be taken, and of which keys, as arrays
    v_taken    record;                   -- what is taken and skipped
    v_tombstones boolean;
begin
    perform pg_advisory_xact_lock(forebay._lock_class(), hashint8(p_group_id # p_lane));
    v_tombstones := pg_sequence_last_value('forebay.tombstone_seq') is not null;
    -- Before the snapshot, and before this transaction has a number itself: see batch.low_from.
    v_low := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);

    select pg_current_snapshot() as now, forebay._now() as at,
           g.start_after, g.queue, g.paused_at, l.audience, l.priority, f.xid as seal_xid,
           array(select s.segment_id from forebay.segment s
                 where s.lo >= coalesce(f.hi, 0) and s.lo <= v_low order by s.lo) as unsealed,
           b.no, b.snap_from, b.snap_to, b.pos_segment, b.pos_seq, b.high_seq, b.handed_total, b.skipped_total, b.claimed_at,
           coalesce(b.low_from, 0) as low_from, coalesce(b.edge_from, '0') as edge_from,
           coalesce(b.low_to, b.low_from, 0) as low_to, coalesce(b.edge_to, b.edge_from, '0') as edge_to,
           coalesce(b.snap_from, w.first) as start, coalesce(b.snap_to, b.snap_from, w.first) as stop
    into c
    from forebay.queue_group g
    left join lateral (select i.audience, i.priority from forebay.lane i where i.lane = p_lane limit 1) l on true
    left join lateral (select s.xid, i.hi from forebay.seal s join forebay.segment i using (segment_id)
                       order by s.segment_id desc limit 1) f on true
    left join lateral (select * from forebay.batch i
                       where i.group_id = p_group_id and i.lane = p_lane order by i.no desc limit 1) b on true
    cross join lateral (select case l.audience when 0 then g.start_after else '1:1:' end as first) w
    where g.group_id = p_group_id;

    if c.queue is null then
        raise exception using errcode = 'JQ014',
            message = format('there is no group %s', p_group_id),
            hint = 'Open the group with forebay.open_group() first.';
    end if;
    if c.audience is null or c.paused_at is not null then
        return '{}';
    end if;
    if pg_snapshot_xmax(c.stop) > pg_snapshot_xmax(c.now) then
        raise exception using errcode = 'JQ030',
            message = format('the cursor of lane %s is ahead of this cluster: xid %s, now %s',
                             p_lane, pg_snapshot_xmax(c.stop), pg_snapshot_xmax(c.now)),
            hint = 'This database was restored from another cluster. Run forebay adopt --resume or --discard.';
    end if;
    if c.audience < 0 then
        v_limit := 1;
    end if;

    if c.snap_to is not null then
        v_window := forebay._window_keyed(p_lane, c.start, c.low_from, c.edge_from, c.stop, c.pos_segment, c.pos_seq, v_limit,
                                          c.unsealed, c.seal_xid);
        v_rows := v_window.rows;
        v_segments := v_window.segments;
        v_looked := v_window.looked;
        v_old := cardinality(v_rows);
    end if;
    if v_old < v_limit then
        v_window := forebay._window_keyed(p_lane, c.stop, c.low_to, c.edge_to, c.now, 0, 0, v_limit - v_old, c.unsealed, c.seal_xid);
        v_rows := v_rows || v_window.rows;
        v_segments := v_segments || v_window.segments;
        v_looked := v_looked + v_window.looked;
    end if;
    v_count := cardinality(v_rows);
    v_used_up := v_count < v_limit;

    if v_count = 0 then
        if c.snap_to is not null or v_looked > 2 or forebay._should_move(c.start, c.now, c.claimed_at) then
            insert into forebay.batch (
                group_id, lane, no, snap_from, pos_segment, pos_xid, pos_seq, high_seq,
                handed_total, skipped_total, claimed_at, edge_from, low_from)
            values (p_group_id, p_lane, coalesce(c.no, 0) + 1, c.now, 0, '0', 0, coalesce(c.high_seq, 0),
                    coalesce(c.handed_total, 0), coalesce(c.skipped_total, 0), c.at, pg_current_xact_id(), v_low);
        end if;
        return '{}';
    end if;

    -- From here on nobody else decides about the group's keys, and later statements see what was decided before.
    perform pg_advisory_xact_lock(forebay._lock_class(), hashint8(hashtextextended('keys', p_group_id)));

    with met as materialized (
        select u.ordering_key as key, u.ordinality as nr, u.lane, u.seq, u.kind = '' as is_token, coalesce(u.job_id, u.seq) as job_id
        from unnest(v_rows) with ordinality u
    ), stands as materialized (
        select s.*, not exists (select from met m where m.key = s.ordering_key and m.job_id = s.head and not m.is_token)
                    and s.head is not null as waits
        from forebay._key_states(p_group_id, array(select distinct m.key from met m)) s
    ), state as materialized (
        select s.ordering_key as key, s.no, s.mark, s.head, s.is_busy, s.waiting_lanes, s.waiting_seqs, s.is_busy or s.waits as is_taken,
               greatest(1, v_limit / greatest(1, count(*) filter (where not (s.is_busy or s.waits)) over ()))::integer as quota
        from stands s
    ), parked as materialized (
        select s.key, i.parked_no, i.lane, i.seq
        from state s, lateral (
            select p.parked_no, p.lane, p.seq from forebay.parked p
            where p.group_id = p_group_id and p.ordering_key = s.key and p.parked_no > s.mark
            order by p.parked_no limit s.quota) i
        where not s.is_taken
    ), behind as materialized (
        select p.key, count(*) as jobs from parked p group by p.key
    ), candidate as (
        -- A key's jobs in the order in which they are to be taken. 0: was on its way as the key's next.
        select s.key, 0 as class, m.nr, m.lane, m.seq, null::bigint as parked_no
        from met m join state s on s.key = m.key
        where m.job_id = s.head and not m.is_token and not s.is_busy
        union all
        -- 1: kept back. 2: parked.
        select s.key, 1, u.nr, u.lane, u.seq, null
        from state s, unnest(s.waiting_lanes, s.waiting_seqs) with ordinality u (lane, seq, nr)
        where not s.is_taken
        union all
        select p.key, 2, p.parked_no, p.lane, p.seq, p.parked_no from parked p
        union all
        -- 3: new. 4: new, and to be parked: the key is taken, or there is more before it than was read.
        select s.key, case when s.is_taken or b.jobs >= s.quota
                                or c.audience < 0 and (b.jobs > 0 or s.waiting_seqs <> '{}') then 4 else 3 end,
               m.nr, m.lane, m.seq, null
        from met m join state s on s.key = m.key left join behind b on b.key = m.key
        where m.job_id is distinct from s.head and not m.is_token
        union all
        -- 5: came back while other jobs of its turn have not ended, as their holder is about to tell.
        select s.key, 5, m.nr, m.lane, m.seq, null
        from met m join state s on s.key = m.key
        where m.job_id = s.head and not m.is_token and s.is_busy
    ), listed as materialized (
        select x.*, row_number() over (order by x.key, x.class, x.nr) as place from candidate x
    )
    select (select array_agg(x.key order by x.place) from listed x) as keys,
           (select array_agg(x.class order by x.place) from listed x) as classes,
           (select array_agg(x.lane order by x.place) from listed x) as lanes,
           (select array_agg(x.seq order by x.place) from listed x) as seqs,
           (select array_agg(x.parked_no order by x.place) from listed x) as parked,
           (select array_agg(x.lane order by x.place) from listed x where x.class in (1, 2)) as fetch_lanes,
           (select array_agg(x.seq order by x.place) from listed x where x.class in (1, 2)) as fetch_seqs,
           array(select s.key from state s order by s.key) as state_keys,
           array(select s.no from state s order by s.key) as state_nos,
           array(select s.mark from state s order by s.key) as state_marks
    into v_found;

    with row_of as materialized (
        select u.seq, u.lane, u.xid, coalesce(u.job_id, u.seq) as job_id, u as job,
               case when n.reason = 'c' then 'c'
                    when n.reason = 'e' then 'E'
                    when coalesce(u.expires_at, u.enqueued_at + interval '30 days') <= c.at then 'e' end as verdict
        from unnest(v_rows || forebay._fetch(v_found.fetch_lanes, v_found.fetch_seqs)) u
        left join lateral (
            select i.reason from forebay.tombstone i
            where v_tombstones and i.job_id = coalesce(u.job_id, u.seq) and (i.group_id is null or i.group_id = p_group_id)
              and i.reason <> 'k'
            order by i.reason desc limit 1) n on true
        where u.kind <> ''
    ), candidate as materialized (
        select x.key, x.class, x.nr, x.parked_no, r.lane, r.seq, r.xid, r.job_id, r.job, r.verdict,
               a.may and r.verdict is null as runs, a.may,
               count(*) filter (where a.may and r.verdict is null) over (partition by x.key order by x.nr) as rank
        from unnest(v_found.keys, v_found.classes, v_found.lanes, v_found.seqs, v_found.parked) with ordinality x (key, class, lane, seq, parked_no, nr)
        join row_of r on r.seq = x.seq and r.lane = x.lane
        cross join lateral (select x.class < 4 and (c.audience >= 0 or x.class in (0, 3)) as may) a
    ), chosen as materialized (
        -- The first of each key before the second of any.
        select i.key, i.nr, i.lane, i.seq, i.xid, i.job_id, i.job, (row_number() over (order by i.rank, i.nr))::smallint as place
        from candidate i where i.runs
        order by i.rank, i.nr limit v_limit
    ), reach as materialized (
        -- A key's turn reaches to the last job taken, or over all that is skipped when there is none to run.
        select s.key, s.no, s.mark, h.places, h.jobs, h.low, h.high,
               coalesce(h.upto, case when not i.runs then i.upto end) as upto
        from unnest(v_found.state_keys, v_found.state_nos, v_found.state_marks) s (key, no, mark)
        left join (select x.key, max(x.nr) as upto, array_agg(x.place order by x.nr) as places,
                          array_agg(x.job_id order by x.nr) as jobs, min(x.seq) as low, max(x.seq) as high
                   from chosen x group by x.key) h on h.key = s.key
        left join (select x.key, max(x.nr) filter (where x.may) as upto, bool_or(x.runs) as runs
                   from candidate x group by x.key) i on i.key = s.key
    ), rest as materialized (
        select i.key, max(i.parked_no) filter (where i.nr <= t.upto) as mark,
               array_agg(i.lane order by i.nr) filter (where i.nr > t.upto and i.class = 1) as lanes,
               array_agg(i.seq order by i.nr) filter (where i.nr > t.upto and i.class = 1) as seqs,
               min(i.seq) filter (where i.class = 1) as low, max(i.seq) filter (where i.class = 1) as high
        from candidate i join reach t on t.key = i.key
        where t.upto is not null
        group by i.key
    ), turn as (
        insert into forebay.key_turn (
            group_id, ordering_key, no, lease_id, claim_no, offsets, jobs, mark, rest_lanes, rest_seqs, low_seq, high_seq, taken_at)
        select p_group_id, t.key, t.no + 1, case when t.places is not null then p_lease_id end,
               case when t.places is not null then p_claim_no end, t.places, t.jobs, greatest(t.mark, r.mark), r.lanes, r.seqs,
               coalesce(least(t.low, r.low), 0), coalesce(greatest(t.high, r.high), 0), c.at
        from reach t join rest r on r.key = t.key
    ), parking as (
        insert into forebay.parked (group_id, ordering_key, lane, seq)
        select p_group_id, i.key, i.lane, i.seq
        from candidate i join reach t on t.key = i.key
        where i.class = 4 or i.class = 3 and i.nr > coalesce(t.upto, 0)
        order by i.nr
    ), skipped as materialized (
        select i.nr, i.seq, i.job, i.verdict from candidate i join reach t on t.key = i.key and i.nr <= t.upto
        where i.may and i.verdict is not null
    )
    select (select array_agg(i.lane order by i.place) from chosen i) as lanes,
           (select array_agg(i.seq order by i.place) from chosen i) as seqs,
           (select array_agg(i.xid order by i.place) from chosen i) as xids,
           (select array_agg(i.key order by i.place) from chosen i) as keys,
           (select array_agg(i.places[cardinality(i.places)] order by o.place)
            from chosen o join reach i on i.key = o.key) as tails,
           (select array_agg(i.job order by i.place) from chosen i) as jobs,
           (select array_agg(i.seq order by i.nr) from skipped i) as skipped,
           (select array_agg(lower(i.verdict)::"char" order by i.nr) from skipped i) as skipped_as,
           (select count(forebay._bury(p_group_id, c.queue, c.priority, i.job, 'expired', coalesce((i.job).attempt, 0)))
            from skipped i where i.verdict = 'e') as buried,
           (select count(forebay._bounce(i.job, c.at)) from candidate i where i.class = 5) as bounced,
           -- Nothing of these is taken, and there may be more of them than was read.
           array(select i.key from reach i where i.upto is not null and i.places is null) as again
    into v_taken;
    if v_taken.again <> '{}' then
        perform forebay._announce_keys(c.queue, c.priority, p_group_id, v_taken.again);
    end if;

    v_from := c.start;
    v_to := c.stop;
    if v_count > v_old then
        v_from := c.stop;
        v_to := c.now;
        c.low_from := c.low_to;
        c.edge_from := c.edge_to;
        c.low_to := v_low;
        c.edge_to := pg_current_xact_id();
    end if;
    insert into forebay.batch (
        group_id, lane, no, lease_id, claim_no, floor, snap_from, snap_to, pos_segment, pos_xid, pos_seq, high_seq,
        handed_total, skipped_total, claimed_at, seqs, xids, skipped, skipped_as, lanes, keys, tails,
        edge_from, low_from, edge_to, low_to)
    select p_group_id, p_lane, coalesce(c.no, 0) + 1,
           case when v_taken.seqs is not null then p_lease_id end, case when v_taken.seqs is not null then p_claim_no end, p_floor,
           case when v_used_up then c.now else v_from end,
           case when v_used_up then null else v_to end,
           case when v_used_up then 0 else v_segments[v_count] end,
           '0', case when v_used_up then 0 else v_rows[v_count].seq end,
           greatest(c.high_seq, (select max(s) from unnest(v_taken.seqs || array(select u.seq from unnest(v_rows) u)) s)),
           coalesce(c.handed_total, 0) + coalesce(cardinality(v_taken.seqs), 0),
           coalesce(c.skipped_total, 0) + coalesce(cardinality(v_taken.skipped), 0),
           c.at, v_taken.seqs, v_taken.xids, v_taken.skipped, v_taken.skipped_as,
           case when exists (select from unnest(v_taken.lanes) l where l <> p_lane) then v_taken.lanes end, v_taken.keys, v_taken.tails,
           case when v_used_up then pg_current_xact_id() else c.edge_from end,
           case when v_used_up then v_low else c.low_from end,
           case when not v_used_up then c.edge_to end,
           case when not v_used_up then c.low_to end
    from (select from forebay.lease i
          where i.lease_id = p_lease_id and i.closed_at is null
          for key share) held;
    if not found then
        raise exception using errcode = 'JQ010',
            message = format('lease %s is closed', p_lease_id),
            hint = 'Its jobs were given to other workers. Open a new lease.';
    end if;
    return coalesce(v_taken.jobs, '{}');
end
$$;


-- Let a key's next job, that came too early, come again in a moment.
create function forebay._bounce(p_row forebay.log, p_at timestamptz) returns boolean
language plpgsql volatile
as $$
begin
    perform forebay._go_on(p_row, p_row.lane, p_row.attempt, p_row.pauses, p_at + interval '0.2 seconds');
    return true;
end
$$;


-- Let the group's claims look at some keys again: a token for each.
create function forebay._announce_keys(p_queue text, p_priority integer, p_group_id bigint, p_keys text[]) returns void
language plpgsql volatile
as $$
begin
    insert into forebay.log (lane, enqueued_at, kind, args, ordering_key)
    select l.lane, l.at, '', '{}', k.key
    from unnest(p_keys) k (key),
         (select forebay._note_keyed_lane(p_queue, p_priority, p_group_id) as lane, forebay._now() as at offset 0) l;
end
$$;


-- Keys of a batch whose next job is on its way in a new row.
create function forebay._keys_in_transit(p_lease_id bigint, p_claim_no bigint, p_keys text[]) returns text[]
language sql stable
as $$
    select array(select p_keys[u.place] from forebay.settlement s, unnest(s.offsets, s.outcomes) u (place, code)
                 where s.lease_id = p_lease_id and s.claim_no = p_claim_no and u.code in ('r', 'l', 's', 'u', 'h'))
$$;


-- The outcomes of a flush, with k for every job that would go on although an earlier one of its key has not ended: it
-- stays behind that one. So of a key at most one job is on its way in a new row.
create function forebay._kept_back(
    p_lease_id bigint, p_claim_no bigint, p_keys text[], p_offsets smallint[], p_outcomes "char"[])
returns "char"[]
language sql stable
as $$
    with now as (
        select u.place, u.code, u.nr from unnest(p_offsets, p_outcomes) with ordinality u (place, code, nr)
    ), ended as (
        select n.place, n.code from now n
        union all
        select u.place, coalesce(u.code, 'd')
        from forebay.settlement s, unnest(s.offsets, s.outcomes) u (place, code)
        where s.lease_id = p_lease_id and s.claim_no = p_claim_no
    ), entry as (
        select b.key, b.place, e.code is not null and e.code in ('d', 'c', 'x') as is_final
        from unnest(p_keys) with ordinality b (key, place) left join ended e on e.place = b.place
    ), first as (
        select e.key, min(e.place) as place from entry e where not e.is_final group by e.key
    )
    select array_agg(case when n.code not in ('d', 'c', 'x') and n.place > f.place then 'k' else n.code end order by n.nr)
    from now n
    join entry e on e.place = n.place
    left join first f on f.key = e.key
$$;


-- Announce the keys of a flush whose turn may be over: with the last of its jobs settled, now or before.
--
-- Whoever writes a flush does not see another one that is under way. Of two flushes of one batch at the same time, one is
-- that of a handler's own transaction, or keeps jobs back: these announce in any case. A token too many is read and forgotten.
create function forebay._release_keys(
    p_lease_id bigint, p_claim_no bigint, p_lane bigint, p_group_id bigint, p_keys text[], p_tails smallint[],
    p_flush_no integer, p_offsets smallint[], p_outcomes "char"[])
returns void
language plpgsql volatile
as $$
declare
    v_lane  record;
    v_tails smallint[];
begin
    if p_offsets is null then
        v_tails := array(select distinct o from unnest(p_tails) o);
    elsif p_outcomes is null and p_flush_no > 0 then
        v_tails := array(select distinct p_tails[o] from unnest(p_offsets) o);
        if not v_tails <@ p_offsets then
            v_tails := array(select o from unnest(v_tails) o
                             where o = any (p_offsets)
                                or exists (select from forebay.settlement s
                                           where s.lease_id = p_lease_id and s.claim_no = p_claim_no and o = any (s.offsets)));
        end if;
    else
        -- Where a job goes on in a new row, that row is what the key waits for.
        v_tails := array(
            select p_tails[u.place] from unnest(p_offsets, p_outcomes) u (place, code)
            group by 1
            having bool_or(u.code in ('r', 'l', 's', 'u', 'h')) is not true);
    end if;
    if v_tails <> '{}' then
        select l.queue, l.priority into v_lane from forebay.lane l where l.lane = p_lane limit 1;
        perform forebay._announce_keys(v_lane.queue, v_lane.priority, p_group_id, array(select p_keys[o] from unnest(v_tails) o));
    end if;
end
$$;


-- Is a keyed job that a group's cursor has passed still waiting for its key?
create function forebay._is_parked(p_group_id bigint, p_ordering_key text, p_seq bigint) returns boolean
language sql stable
as $$
    select exists (
        select from forebay._key_states(p_group_id, array[p_ordering_key]) s
        where p_seq = any (s.waiting_seqs)
           or exists (select from forebay.parked p
                      where p.seq = p_seq and p.group_id = p_group_id and p.ordering_key = p_ordering_key and p.parked_no > s.mark))
$$;


-- The batch that last handed out a row of a keyed job, or null.
create function forebay._keyed_batch_of(p_group_id bigint, p_ordering_key text, p_seq bigint) returns forebay.batch
language plpgsql stable
as $$
declare
    v_batch forebay.batch;
begin
    for v_batch in
        select b.* from forebay.key_turn t
        join forebay.batch b on b.lease_id = t.lease_id and b.claim_no = t.claim_no
        where t.group_id = p_group_id and t.ordering_key = p_ordering_key and t.low_seq <= p_seq and t.high_seq >= p_seq
          and p_seq = any (b.seqs)
        order by t.no desc limit 1
    loop
        return v_batch;
    end loop;
    return null;
end
$$;


-- All keyed jobs that wait behind a cursor: parked or kept back.
create function forebay._all_parked()
returns table (group_id bigint, ordering_key text, lane bigint, seq bigint, place bigint)
language sql stable
as $$
    with recursive key as (
        (select t.group_id, t.ordering_key from forebay.key_turn t order by t.group_id, t.ordering_key limit 1)
        union all
        select n.group_id, n.ordering_key
        from key k, lateral (
            select t.group_id, t.ordering_key from forebay.key_turn t
            where (t.group_id, t.ordering_key) > (k.group_id, k.ordering_key)
            order by t.group_id, t.ordering_key limit 1) n
    ), state as materialized (
        select g.group_id, s.*
        from (select k.group_id, array_agg(k.ordering_key) as keys from key k group by k.group_id) g,
             lateral forebay._key_states(g.group_id, g.keys) s
    )
    select s.group_id, s.ordering_key, u.lane, u.seq, u.nr - 1000000000
    from state s, unnest(s.waiting_lanes, s.waiting_seqs) with ordinality u (lane, seq, nr)
    union all
    select p.group_id, p.ordering_key, p.lane, p.seq, p.parked_no
    from forebay.parked p
    left join state s on s.group_id = p.group_id and s.ordering_key = p.ordering_key
    where p.parked_no > coalesce(s.mark, 0)
$$;


-- Delete parked rows whose jobs have been taken, and turns that say nothing any more: not the newest of their key, or of jobs
-- that all left the archive. Returns how many rows.
create function forebay._trim_turns(p_most integer) returns bigint
language plpgsql volatile
as $$
declare
    v_key   record;
    v_first bigint;
    v_rows  bigint;
    v_total bigint := 0;
begin
    if pg_sequence_last_value('forebay.key_seq') is null then
        return 0;
    end if;
    select coalesce(min(s.lo), 0) into v_first from forebay.segment s where s.removed_at is null;
    for v_key in
        with recursive key as (
            (select t.group_id, t.ordering_key from forebay.key_turn t order by t.group_id, t.ordering_key limit 1)
            union all
            select n.group_id, n.ordering_key
            from key k, lateral (
                select t.group_id, t.ordering_key from forebay.key_turn t
                where (t.group_id, t.ordering_key) > (k.group_id, k.ordering_key)
                order by t.group_id, t.ordering_key limit 1) n
        )
        select k.group_id, k.ordering_key, s.mark, s.no, s.is_busy or s.head is not null or s.waiting_seqs <> '{}' as is_needed
        from key k, lateral forebay._key_states(k.group_id, array[k.ordering_key]) s
    loop
        exit when v_total >= p_most;
        delete from forebay.parked p
        where p.group_id = v_key.group_id and p.ordering_key = v_key.ordering_key and p.parked_no <= v_key.mark;
        get diagnostics v_rows = row_count;
        v_total := v_total + v_rows;
        delete from forebay.key_turn t
        where t.group_id = v_key.group_id and t.ordering_key = v_key.ordering_key and t.high_seq < v_first
          and (t.no < v_key.no or not v_key.is_needed);
        get diagnostics v_rows = row_count;
        v_total := v_total + v_rows;
    end loop;
    return v_total;
end
$$;
