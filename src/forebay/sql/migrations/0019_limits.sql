-- Limits: how many jobs of a queue, and of each of its limit keys, run at once and start per second; and even shares for the
-- keys. See docs/design/limits.md.
--
-- Jobs of a limit key have lanes of their own. Whoever claims from a queue with a pace, or from a *desk* of such lanes, passes
-- the group's *gate*: under one lock it is counted what the group has in flight and which tokens are left, a key is chosen, and
-- one lane is claimed from like any other. What the gate knows is one row, appended and read newest first.


-- The pace of a queue. null: no limit.
create table forebay.queue_pace (
    queue           text primary key,
    concurrency     integer check (concurrency >= 1),
    rate            double precision check (rate > 0),       -- starts per second
    burst           integer check (burst >= 1),              -- tokens that a rested queue has saved up
    key_concurrency integer check (key_concurrency >= 1),
    key_rate        double precision check (key_rate > 0),
    key_burst       integer check (key_burst >= 1),
    set_at          timestamptz not null
);

comment on table forebay.queue_pace is 'How many jobs of a queue and of each limit key run at once and start per second; set with forebay.pace_queue().';

-- Tells a claim, without a look at any table, that nobody ever set a pace or used a limit key.
create sequence forebay.gate_seq as bigint cache 1;


-- What a group's gate knows after a claim. Arrays of one kind belong together.
create table forebay.gate (
    group_id   bigint not null,
    no         bigint not null,
    decided_at timestamptz not null,
    snap       pg_snapshot not null,      -- a key's lane that is not in `lanes` had nothing to claim then
    pace_at    timestamptz,               -- set_at of the pace that it knew
    seed_until timestamptz,               -- until then what is in flight is counted from the leases
    tat        timestamptz,               -- when the queue's bucket will be full, "theoretical arrival time"
    leases     bigint[] not null,         -- batches in flight, with how many jobs each took
    claims     bigint[] not null,
    claim_keys bigint[] not null,
    sizes      integer[] not null,
    lanes      bigint[] not null,         -- lanes of keys that may have something to claim
    lane_keys  bigint[] not null,
    desks      bigint[] not null,
    keys       bigint[] not null,         -- keys about which there is something to remember:
    turns      bigint[] not null,         --   the row in which each was served last
    tats       timestamptz[] not null,    --   when its bucket will be full
    primary key (group_id, no)
);


-- What a gate sees now. opens: how many jobs of each batch in flight are not settled; came: lanes to which something came, null
-- when all have to be asked; is_changed: there is something to note, whatever is claimed; is_back: the clock was set back.
create type forebay._gate_view as (
    no bigint, at timestamptz, snap pg_snapshot, seed_until timestamptz, tat timestamptz,
    leases bigint[], claims bigint[], claim_keys bigint[], sizes integer[], opens integer[],
    lanes bigint[], lane_keys bigint[], desks bigint[],
    keys bigint[], turns bigint[], tats timestamptz[],
    is_changed boolean, is_back boolean, is_new_pace boolean, came bigint[], room bigint, pace forebay.queue_pace);


-- A limit key as gates know it; 0 is none.
create function forebay._limit_key_id(p_limit_key text) returns bigint
language sql immutable
as $$ select coalesce(hashtextextended(p_limit_key collate "C", 0), 0) $$;


-- How many jobs a bucket lets start now: the burst, less what it owes.
--
-- A bucket is one time, when it will be full again: the "generic cell rate algorithm" (ITU-T I.371), which needs no
-- upkeep between two claims.
create function forebay._tokens(p_tat timestamptz, p_rate double precision, p_burst integer, p_at timestamptz) returns bigint
language sql immutable
as $$
    select case when p_rate is null then 9223372036854775807
                else greatest(0, floor(coalesce(p_burst, ceil(p_rate))
                                       - greatest(0, coalesce(date_part('epoch', p_tat - p_at), 0)) * p_rate + 1e-6))::bigint end
$$;


-- The bucket after p_count more starts.
create function forebay._tat_after(p_tat timestamptz, p_rate double precision, p_at timestamptz, p_count integer) returns timestamptz
language sql immutable
as $$ select case when p_rate is not null then greatest(p_tat, p_at) + make_interval(secs => p_count / p_rate) end $$;


-- The bucket under a pace that was set at p_at: it owed no more then than what it can hold.
create function forebay._tat_within(p_tat timestamptz, p_rate double precision, p_burst integer, p_at timestamptz) returns timestamptz
language sql immutable
as $$
    select case when p_rate is not null and p_tat is not null
                then least(p_tat, p_at + make_interval(secs => coalesce(p_burst, ceil(p_rate)) / p_rate)) end
$$;


-- Lanes of limit keys of a queue to which something came between two snapshots; null when that is more than p_most pairs of a
-- transaction and a lane. It skips from one pair to the next, however many jobs each has.
create function forebay._arrivals(p_queue text, p_from pg_snapshot, p_to pg_snapshot, p_most integer) returns bigint[]
language plpgsql volatile
as $$
declare
    v_shelf   constant bigint := (hashtextextended(p_queue collate "C", 0) << 48) >> 48;
    v_late    xid8[] := '{}';
    v_lanes   bigint[] := '{}';
    v_left    integer := p_most;
    v_segment bigint;
    v_found   record;
begin
    if pg_snapshot_xmin(p_from) <> pg_snapshot_xmax(p_from) then
        v_late := array(select x from pg_snapshot_xip(p_from) x where pg_visible_in_snapshot(x, p_to));
    end if;
    for v_segment in
        select s.segment_id from forebay.segment s left join forebay.seal f using (segment_id)
        where s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0) and s.removed_at is null
          and (f.xid is null or f.xid > pg_snapshot_xmax(p_from) or f.xid > any (v_late))
        order by s.segment_id desc
    loop
        execute 'select * from forebay._arrivals_' || v_segment || '($1, $2, $3, $4, $5)'
            into v_found using v_shelf, p_from, p_to, v_late, v_left;
        v_left := v_left - v_found.pairs;
        if v_left <= 0 then
            return null;
        end if;
        v_lanes := v_lanes || v_found.lanes;
    end loop;
    return v_lanes;
end
$$;


-- All lanes of limit keys of a queue that may have something to claim for a group: asked of each, as forebay.ready_v1() does.
create function forebay._unclaimed_lanes(p_group_id bigint, p_queue text) returns bigint[]
language plpgsql volatile
as $$
declare
    v_places  forebay._place[];
    v_moved   boolean[];
    v_segment bigint;
    v_before  xid8;
begin
    -- Older than the last sealed segment: let the claim look.
    select f.xid into v_before from forebay.seal f order by f.segment_id desc offset 1 limit 1;
    select array_agg(row(p_group_id, p.lane, null, null, null, p.snap, null)::forebay._place),
           array_agg(p.in_hand or coalesce(v_before > pg_snapshot_xmax(p.snap), false)
                     or coalesce(v_before > pg_snapshot_xmin(p.snap), false) and pg_snapshot_xmin(p.snap) <> pg_snapshot_xmax(p.snap))
    into v_places, v_moved
    from (select l.lane, b.snap_to is not null as in_hand,
                 coalesce(b.snap_from, case l.audience when 0 then g.start_after else '1:1:' end) as snap
          from forebay.queue_group g
          join lateral (select distinct i.lane, i.audience from forebay.lane i
                        where i.queue = p_queue and i.part = 1000 and i.audience in (0, p_group_id, -p_group_id)) l on true
          left join lateral (select c.snap_from, c.snap_to from forebay.batch c
                             where c.group_id = p_group_id and c.lane = l.lane order by c.no desc limit 1) b on true
          where g.group_id = p_group_id) p;
    for v_segment in
        select s.segment_id from forebay.segment s
        where s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
          and s.segment_id >= coalesce((select f.segment_id from forebay.seal f order by f.segment_id desc limit 1), 0)
        order by s.segment_id
    loop
        exit when array_position(v_moved, false) is null;
        execute 'select forebay._moved_' || v_segment || '($1, $2)' into v_moved using v_places, v_moved;
    end loop;
    return array(select (p.place).lane from (select unnest(v_places) as place, unnest(v_moved) as moved) p where p.moved);
end
$$;


-- What is in flight for a group, counted from the open leases: batches, their keys, how many jobs each took and has unsettled.
create function forebay._in_flight(p_group_id bigint)
returns table (lease_id bigint, claim_no bigint, key bigint, size integer, open integer)
language sql volatile
as $$
    select b.lease_id, b.claim_no, forebay._limit_key_id(k.limit_key), cardinality(b.seqs), cardinality(b.seqs) - s.settled
    from forebay.lease e
    cross join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f
    join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
    cross join lateral (select l.limit_key from forebay.lane l where l.lane = b.lane limit 1) k
    cross join lateral (
        select coalesce(bool_or(j.offsets is null), false) as whole, coalesce(sum(cardinality(j.offsets)), 0)::integer as settled
        from forebay.settlement j where j.lease_id = b.lease_id and j.claim_no = b.claim_no) s
    where e.closed_at is null and b.group_id = p_group_id and not s.whole and s.settled < cardinality(b.seqs)
$$;


-- What a group's gate sees now: its newest row, less what has ended, plus what has come.
--
-- A batch is in flight until it is settled or its lease is closed; so nothing needs to be released, whatever crashes. After
-- a pace was set, all is counted from the leases for a second: claims under way then did not pass the gate.
create function forebay._look_at_gate(p_group_id bigint, p_queue text) returns forebay._gate_view
language plpgsql volatile
as $$
declare
    v forebay._gate_view;
begin
    -- One statement: in each transaction an expression costs more to make than to evaluate.
    select coalesce(c.no, 0), n.at, n.snap, c.seed_until, c.tat,
           coalesce(o.leases, '{}'), coalesce(o.claims, '{}'), coalesce(o.keys, '{}'), coalesce(o.sizes, '{}'), coalesce(o.opens, '{}'),
           coalesce(c.lanes, '{}'), coalesce(c.lane_keys, '{}'), coalesce(c.desks, '{}'),
           coalesce(c.keys, '{}'), coalesce(c.turns, '{}'), coalesce(c.tats, '{}'),
           c.no is null or p.set_at is distinct from c.pace_at or c.decided_at > n.at, coalesce(c.decided_at > n.at, false),
           p.set_at is distinct from c.pace_at,
           case when not exists (select from forebay.lane l where l.queue = p_queue and l.part = 1000) then '{}'
                when c.no is not null then forebay._arrivals(p_queue, c.snap, n.snap, 2000) end,
           0, p
    into v
    from (select forebay._now() as at, pg_current_snapshot() as snap offset 0) n
    left join forebay.queue_pace p on p.queue = p_queue
    left join lateral (select g.* from forebay.gate g where g.group_id = p_group_id order by g.no desc limit 1) c on true
    left join lateral (
        select array_agg(i.lease_id order by i.nr) as leases, array_agg(i.claim_no order by i.nr) as claims,
               array_agg(i.key order by i.nr) as keys, array_agg(i.size order by i.nr) as sizes,
               array_agg(i.size - s.settled order by i.nr) as opens
        from unnest(c.leases, c.claims, c.claim_keys, c.sizes) with ordinality i (lease_id, claim_no, key, size, nr)
        cross join lateral (
            select coalesce(bool_or(j.offsets is null), false) as whole, coalesce(sum(cardinality(j.offsets)), 0)::integer as settled
            from forebay.settlement j where j.lease_id = i.lease_id and j.claim_no = i.claim_no) s
        where not s.whole and s.settled < i.size
          and exists (select from forebay.lease l where l.lease_id = i.lease_id and l.closed_at is null)
          and exists (select from forebay.batch b where b.lease_id = i.lease_id and b.claim_no = i.claim_no)) o on true;

    if v.is_changed or v.seed_until >= v.at then
        v := forebay._look_closely(v, p_group_id);
    end if;
    v.room := least(coalesce((v.pace).concurrency - (select sum(o) from unnest(v.opens) o), (v.pace).concurrency, 9223372036854775807),
                    forebay._tokens(v.tat, (v.pace).rate, (v.pace).burst, v.at));
    if v.came is null or v.came <> '{}' then
        if v.came is null then
            v.came := forebay._unclaimed_lanes(p_group_id, p_queue);
            v.is_changed := true;
        end if;
        select v.lanes || coalesce(array_agg(n.lane), '{}'), v.lane_keys || coalesce(array_agg(forebay._limit_key_id(n.limit_key)), '{}'),
               v.desks || coalesce(array_agg(forebay._desk_id(n.queue, n.priority, n.audience)), '{}'), v.is_changed or count(*) > 0
        into v.lanes, v.lane_keys, v.desks, v.is_changed
        from (select distinct a from unnest(v.came) a except select unnest(v.lanes)) u (lane)
        cross join lateral (select * from forebay.lane l where l.lane = u.lane limit 1) n
        where n.queue = p_queue and n.audience in (0, p_group_id, -p_group_id);
    end if;
    return v;
end
$$;


-- What a gate has to do seldom: after a pace was set it counts what is in flight from the leases, and no bucket owes more than
-- it can hold; a clock that was set back takes the buckets with it.
create function forebay._look_closely(v forebay._gate_view, p_group_id bigint) returns forebay._gate_view
language plpgsql volatile
as $$
declare
    v_back interval := interval '0';
begin
    if v.is_new_pace then
        v.seed_until := v.at + interval '1 second';
    end if;
    if v.seed_until >= v.at and num_nonnulls((v.pace).concurrency, (v.pace).key_concurrency) > 0 then
        select coalesce(array_agg(f.lease_id), '{}'), coalesce(array_agg(f.claim_no), '{}'), coalesce(array_agg(f.key), '{}'),
               coalesce(array_agg(f.size), '{}'), coalesce(array_agg(f.open), '{}')
        into v.leases, v.claims, v.claim_keys, v.sizes, v.opens
        from forebay._in_flight(p_group_id) f;
    end if;
    if v.is_back then
        v_back := (select g.decided_at - v.at from forebay.gate g where g.group_id = p_group_id and g.no = v.no);
    end if;
    v.tat := v.tat - v_back;
    v.tats := array(select t - v_back from unnest(v.tats) with ordinality u (t, nr) order by u.nr);
    if v.is_new_pace then
        v.tat := forebay._tat_within(v.tat, (v.pace).rate, (v.pace).burst, (v.pace).set_at);
        v.tats := array(select forebay._tat_within(t, (v.pace).key_rate, (v.pace).key_burst, (v.pace).set_at)
                        from unnest(v.tats) with ordinality u (t, nr) order by u.nr);
    end if;
    return v;
end
$$;


-- The lanes of limit keys that a gate lets through, best first, with at most how many jobs of each: the key with the fewest jobs
-- in flight, then the one that was served longest ago. A key that comes anew stands where the longest waiting one does.
create function forebay._line_up(v forebay._gate_view, p_lane bigint, p_limit integer)
returns table (lane bigint, key bigint, desk bigint, most integer)
language plpgsql stable
set enable_nestloop = off  -- Arrays of a thousand are joined with each other.
set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select w.lane, w.key, w.desk, least(w.most, p_limit, v.room, greatest(1, least(p_limit, v.room) / count(*) over ()))::integer
    from (select l.lane, l.key, l.desk, coalesce(o.open, 0) as open, k.turn,
                 least(coalesce((v.pace).key_concurrency - coalesce(o.open, 0), 9223372036854775807),
                       case when (v.pace).key_rate is null then 9223372036854775807
                            else forebay._tokens(k.tat, (v.pace).key_rate, (v.pace).key_burst, v.at) end) as most
          from unnest(v.lanes, v.lane_keys, v.desks) l (lane, key, desk)
          left join unnest(v.keys, v.turns, v.tats) k (key, turn, tat) on k.key = l.key
          left join (select u.key, sum(u.open) as open from unnest(v.claim_keys, v.opens) u (key, open) group by u.key) o
                 on o.key = l.key
          where v.room > 0 and (p_lane is null or l.desk = p_lane or l.lane = p_lane)) w
    where w.most > 0
    order by w.open, w.turn nulls first, random();
end
$$;


-- What gates would let through now: for each group its desks and its other lanes, and a row without a lane for a group with
-- jobs that are held back.
create function forebay._ready_at_gates(
    p_group_ids bigint[], p_places forebay._place[], p_moved boolean[], p_now pg_snapshot, p_before xid8)
returns table (group_id bigint, lane bigint, queue text, priority integer, audience bigint)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_group record;
    v       forebay._gate_view;
    v_plain bigint[];
    v_open  bigint[];
begin
    for v_group in select g.group_id, g.queue from forebay.queue_group g where g.group_id = any (p_group_ids) loop
        v := forebay._look_at_gate(v_group.group_id, v_group.queue);
        v_plain := array(
            select p.lane
            from rows from (unnest(p_places), unnest(p_moved))
                 as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved)
            where p.group_id = v_group.group_id
              and (p.moved
                   or pg_snapshot_xmin(p.snap) <> pg_snapshot_xmax(p.snap) and p_before > pg_snapshot_xmin(p.snap)
                      and exists (select from pg_snapshot_xip(p.snap) x where x < p_before and pg_visible_in_snapshot(x, p_now))
                   or forebay._should_move(p.snap, p_now, p.claimed_at)));
        v_open := array(select distinct l.desk from forebay._line_up(v, null, 1) l);
        if v.room > 0 or v.is_back then
            v_open := v_open || v_plain || case when v.is_back then v.desks end;
        end if;
        if v_open = '{}' and cardinality(v.lanes) + cardinality(v_plain) > 0 then
            group_id := v_group.group_id;
            lane := null;
            return next;
        end if;
        return query
        select v_group.group_id, o.lane, n.queue, n.priority, n.audience
        from (select distinct u from unnest(v_open) u) o (lane)
        cross join lateral (select l.queue, l.priority, l.audience from forebay.lane l where l.lane = o.lane limit 1) n;
    end loop;
end
$$;


-- forebay.claim_v1() of a desk, or of a lane whose queue has a pace: jobs of one lane, as many as the gate lets through.
--
-- Invariants "no more at once" and "no more per second" (docs/design/limits.md): all claims of the group that pass here take turns,
-- and the gate's row and the batch are one commit.
-- Locks, in order: the gate, then as any claim.
create function forebay._claim_at_gate(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer)
returns text
language plpgsql volatile
as $$
declare
    v      forebay._gate_view;
    v_lane record;
    v_try  record;
    v_jobs text;
    v_took record;
    v_gone bigint[] := '{}';
begin
    perform set_config('synchronous_commit', 'off', true),
            pg_advisory_xact_lock(forebay._lock_class(), hashint8(hashtextextended('gate', p_group_id)));
    -- Later statements than the lock: they see whatever its last holder committed.
    select l.queue, l.part, g.group_id, g.paused_at into v_lane
    from forebay.lane l left join forebay.queue_group g on g.group_id = p_group_id
    where l.lane = p_lane limit 1;
    if v_lane.group_id is null then
        raise exception using errcode = 'JQ014',
            message = format('there is no group %s', p_group_id),
            hint = 'Open the group with forebay.open_group() first.';
    elsif v_lane.paused_at is not null then
        return null;
    end if;
    v := forebay._look_at_gate(p_group_id, v_lane.queue);

    for v_try in
        select l.* from forebay._line_up(v, p_lane, p_limit) l where v_lane.part >= 1000
        union all
        select p_lane, 0, null, least(p_limit, v.room)::integer where v_lane.part < 1000 and v.room > 0
        limit 200
    loop
        v_jobs := forebay._claim_one(p_lease_id, p_claim_no, p_floor, p_group_id, v_try.lane, v_try.most, v_lane.part < 0);
        if v_jobs = '' then
            return null;  -- Paused meanwhile: whether the lane is empty was not looked at.
        end if;
        select b.lease_id = p_lease_id and b.claim_no = p_claim_no as is_ours, cardinality(b.seqs) as size, b.snap_to is null as is_empty
        into v_took
        from forebay.batch b where b.group_id = p_group_id and b.lane = v_try.lane order by b.no desc limit 1;
        if v_lane.part >= 1000 and v_took.is_empty is not false then
            v_gone := v_gone || v_try.lane;
        end if;
        exit when v_jobs is not null;
    end loop;
    if v_jobs is not null or v_gone <> '{}' or v.is_changed then
        perform forebay._note_gate(v, p_group_id, v_gone, p_lease_id, p_claim_no, v_try.key,
                                   case when v_jobs is not null then v_took.size else 0 end);
    end if;
    return v_jobs;
end
$$;


-- The claim of one lane behind a gate: as that of forebay.claim_v1(); an empty text when it did not look, see forebay._take().
create function forebay._claim_one(
    p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer, p_keyed boolean)
returns text
language plpgsql volatile
as $$
declare
    v_segment bigint;
    v_jobs    text;
    v_rows    forebay.log[];
begin
    if p_keyed then
        return forebay._claim_keyed(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit);
    end if;
    perform pg_advisory_xact_lock(forebay._lock_class(), hashint8(p_group_id # p_lane));
    select coalesce(
        (select case when b.snap_to is not null then b.pos_segment end from forebay.batch b
         where b.group_id = p_group_id and b.lane = p_lane order by b.no desc limit 1),
        (select s.segment_id from forebay.segment s
         where s.lo <= pg_sequence_last_value('forebay.log_seq') order by s.lo desc limit 1))
    into v_segment;
    if v_segment is not null then
        execute 'select forebay._take_' || v_segment || '($1, $2, $3, $4, $5, $6)'
            into v_jobs
            using p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit;
    end if;
    if v_jobs is null then
        v_rows := forebay._take(p_lease_id, p_claim_no, p_floor, p_group_id, p_lane, p_limit, false);
        if v_rows is null then
            return '';
        end if;
        select string_agg(forebay._job_json(
                   u.seq, u.job_id, u.enqueued_at, u.expires_at, u.attempt, u.max_attempts, u.pauses, u.kind, u.args,
                   u.tag, u.correlation_id, u.headers), ',' order by u.ordinality)
        into v_jobs
        from unnest(v_rows) with ordinality u;
    end if;
    return v_jobs;
end
$$;


-- Append what a gate knows after a claim that took p_count jobs of a key and found p_gone without any more.
--
-- A key is remembered while it waits, while its bucket is not full, or while another one waits that is not served since: who
-- comes again at once shall not come first.
create function forebay._note_gate(
    v forebay._gate_view, p_group_id bigint, p_gone bigint[], p_lease_id bigint, p_claim_no bigint, p_key bigint, p_count integer)
returns void
language plpgsql volatile
set enable_nestloop = off
set jit = off
as $$
begin
    with line as materialized (
        select l.lane, l.key, l.desk, l.nr from unnest(v.lanes, v.lane_keys, v.desks) with ordinality l (lane, key, desk, nr)
        where l.lane <> all (p_gone)
    ), known as materialized (
        select k.key, case when k.key = p_key and p_count > 0 then v.no + 1 else k.turn end as turn,
               case when k.key = p_key and p_count > 0
                    then forebay._tat_after(k.tat, (v.pace).key_rate, v.at, p_count) else k.tat end as tat
        from unnest(v.keys, v.turns, v.tats) k (key, turn, tat)
        union all
        select p_key, v.no + 1, forebay._tat_after(null, (v.pace).key_rate, v.at, p_count)
        where p_count > 0 and p_key <> 0 and p_key <> all (v.keys)
    ), first as materialized (
        select min(coalesce(k.turn, 0)) as turn from line l left join known k on k.key = l.key
    ), kept as materialized (
        select k.* from known k, first f where k.tat > v.at or k.turn >= f.turn
    ), flight as materialized (
        select b.* from (
            select u.*, count(*) over () - u.nr as younger
            from (select i.lease_id, i.claim_no, i.key, i.size, i.nr
                  from unnest(v.leases, v.claims, v.claim_keys, v.sizes) with ordinality i (lease_id, claim_no, key, size, nr)
                  union all
                  select p_lease_id, p_claim_no, p_key, p_count, cardinality(v.leases) + 1 where p_count > 0) u) b
        -- Without a limit on what runs at once this only says whose turn it is.
        where b.younger < 256 or num_nonnulls((v.pace).concurrency, (v.pace).key_concurrency) > 0
    )
    insert into forebay.gate (
        group_id, no, decided_at, snap, pace_at, seed_until, tat, leases, claims, claim_keys, sizes, lanes, lane_keys, desks,
        keys, turns, tats)
    select p_group_id, v.no + 1, v.at, v.snap, (v.pace).set_at, v.seed_until,
           case when p_count > 0 then forebay._tat_after(v.tat, (v.pace).rate, v.at, p_count) else v.tat end,
           f.leases, f.claims, f.keys, f.sizes, l.lanes, l.keys, l.desks, k.keys, k.turns, k.tats
    from (select coalesce(array_agg(i.lease_id order by i.nr), '{}') as leases, coalesce(array_agg(i.claim_no order by i.nr), '{}') as claims,
                 coalesce(array_agg(i.key order by i.nr), '{}') as keys, coalesce(array_agg(i.size order by i.nr), '{}') as sizes
          from flight i) f,
         (select coalesce(array_agg(i.lane order by i.nr), '{}') as lanes, coalesce(array_agg(i.key order by i.nr), '{}') as keys,
                 coalesce(array_agg(i.desk order by i.nr), '{}') as desks from line i) l,
         (select coalesce(array_agg(i.key order by i.turn), '{}') as keys, coalesce(array_agg(i.turn order by i.turn), '{}') as turns,
                 coalesce(array_agg(i.tat order by i.turn), '{}') as tats from kept i) k;
end
$$;


-- Delete rows of gates behind the newest ones, p_back at most of each that far back, or all; returns how many.
create function forebay._trim_gates(p_back bigint) returns bigint
language plpgsql volatile
as $$
declare
    v_group record;
    v_rows  bigint;
    v_total bigint := 0;
begin
    if pg_sequence_last_value('forebay.gate_seq') is null then
        return 0;
    end if;
    for v_group in
        select n.group_id, n.no from forebay.queue_group q,
               lateral (select g.group_id, g.no from forebay.gate g where g.group_id = q.group_id order by g.no desc limit 1) n
    loop
        delete from forebay.gate g
        where g.group_id = v_group.group_id and g.no < v_group.no - 10 and g.no >= coalesce(v_group.no - p_back, 0);
        get diagnostics v_rows = row_count;
        v_total := v_total + v_rows;
    end loop;
    return v_total;
end
$$;


-- Set the pace of a queue: how many of its jobs run at once and how many start per second, in all and of each limit key. What
-- is not given has no limit; nothing given, the queue has no pace any more. Returns the pace before, null for none.
--
-- Each group of the queue has its own. It holds from the next claim on; what runs goes on, and counts.
--
-- Parameters: concurrency, key_concurrency, at least 1; rate, key_rate, starts per second, also below 1; burst, key_burst, how
--   many may start at once after a rest: null, what comes in a second, at least 1.
-- Errors: JQ001 a bad name or number.
create function forebay.pace_queue(
    queue text, concurrency integer default null, rate double precision default null, burst integer default null,
    key_concurrency integer default null, key_rate double precision default null, key_burst integer default null)
returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_before  jsonb;
    v_problem text;
begin
    v_problem := case
        when (pace_queue.queue ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true
            then format('queue %s is not a name: letters, digits and _ . : - only, at most 128', coalesce(quote_literal(left(pace_queue.queue, 40)), 'null'))
        when pace_queue.concurrency not between 1 and 1000000 then format('concurrency %s is outside 1 to 1000000', pace_queue.concurrency)
        when pace_queue.key_concurrency not between 1 and 1000000 then format('key_concurrency %s is outside 1 to 1000000', pace_queue.key_concurrency)
        when pace_queue.rate not between 0.000001 and 1000000 then format('rate %s is outside 0.000001 to 1000000 per second', pace_queue.rate)
        when pace_queue.key_rate not between 0.000001 and 1000000 then format('key_rate %s is outside 0.000001 to 1000000 per second', pace_queue.key_rate)
        when pace_queue.burst not between 1 and 1000000 then format('burst %s is outside 1 to 1000000', pace_queue.burst)
        when pace_queue.key_burst not between 1 and 1000000 then format('key_burst %s is outside 1 to 1000000', pace_queue.key_burst)
        when pace_queue.burst is not null and pace_queue.rate is null then format('burst %s without a rate', pace_queue.burst)
        when pace_queue.key_burst is not null and pace_queue.key_rate is null then format('key_burst %s without a key_rate', pace_queue.key_burst) end;
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = v_problem,
            hint = 'Nothing was changed. See the function forebay.pace_queue in the reference.';
    end if;
    select to_jsonb(p) - 'queue' - 'set_at' into v_before from forebay.queue_pace p where p.queue = pace_queue.queue;
    if num_nonnulls(pace_queue.concurrency, pace_queue.rate, pace_queue.key_concurrency, pace_queue.key_rate) = 0 then
        delete from forebay.queue_pace p where p.queue = pace_queue.queue;
    else
        perform nextval('forebay.gate_seq');
        insert into forebay.queue_pace (queue, concurrency, rate, burst, key_concurrency, key_rate, key_burst, set_at)
        values (pace_queue.queue, pace_queue.concurrency, pace_queue.rate, pace_queue.burst, pace_queue.key_concurrency,
                pace_queue.key_rate, pace_queue.key_burst, forebay._now())
        on conflict on constraint queue_pace_pkey do update
        set concurrency = excluded.concurrency, rate = excluded.rate, burst = excluded.burst, key_concurrency = excluded.key_concurrency,
            key_rate = excluded.key_rate, key_burst = excluded.key_burst, set_at = excluded.set_at;
    end if;
    perform forebay._ring(pace_queue.queue);
    return v_before;
end
$$;


-- The queues with a pace or with limit keys, for each group: the pace, how many jobs run, of how many limit keys jobs wait or
-- may wait, and when the next job of the queue may start by its rate.
create function forebay.pace(only_queue text default null)
returns table (queue text, group_name text, concurrency integer, rate double precision, burst integer, key_concurrency integer,
               key_rate double precision, key_burst integer, running bigint, keys_waiting integer, next_start_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_group record;
    v       forebay._gate_view;
begin
    for v_group in
        select q.queue, g.group_id, g.name
        from (select p.queue from forebay.queue_pace p union select l.queue from forebay.lane l where l.part = 1001) q
        left join forebay.queue_group g on g.queue = q.queue
        where only_queue is null or q.queue = only_queue
        order by q.queue, g.name
    loop
        v := forebay._look_at_gate(coalesce(v_group.group_id, 0), v_group.queue);
        queue := v_group.queue;
        group_name := coalesce(v_group.name, 'default');
        concurrency := (v.pace).concurrency;
        rate := (v.pace).rate;
        burst := (v.pace).burst;
        key_concurrency := (v.pace).key_concurrency;
        key_rate := (v.pace).key_rate;
        key_burst := (v.pace).key_burst;
        running := coalesce((select sum(f.open) from forebay._in_flight(v_group.group_id) f), 0);
        keys_waiting := (select count(distinct k) from unnest(v.lane_keys) k);
        next_start_at := case when rate is not null and forebay._tokens(v.tat, rate, burst, v.at) = 0
                              then v.tat - make_interval(secs => (coalesce(burst, ceil(rate)) - 1) / rate) end;
        return next;
    end loop;
end
$$;
