-- Segments: making them ahead, sealing them behind, and the reader function of each.

-- The one clock. Tests replace it in their own database to shift time.
create function forebay._now() returns timestamptz
language sql volatile
as $$ select clock_timestamp() $$;


create function forebay._setting_value(p_name text) returns bigint
language sql stable
as $$ select s.value from forebay.setting s where s.name = p_name $$;


-- Advisory keys: two-int form under the schema's own oid, so that users' keys cannot collide.
create function forebay._lock_class() returns integer
language sql stable
as $$ select 'forebay'::regnamespace::oid::integer $$;


-- Is the call alone: autocommitted, READ COMMITTED, nothing written yet? See forebay._require_alone().
create function forebay._is_alone() returns boolean
language sql volatile
as $$
    select current_setting('transaction_isolation') = 'read committed'
       and pg_current_xact_id_if_assigned() is null
       and statement_timestamp() - transaction_timestamp() <= interval '3 seconds'
$$;


-- Raise unless the call stands alone: autocommitted, READ COMMITTED, nothing written yet.
--
-- Claims, seals and promotions read what other transactions committed up to this very statement;
-- an older snapshot or an already drawn xid would break them, and their locks must not last. Nothing tells
-- a function that it runs in a transaction block; that the transaction is older than the statement does. Up
-- to three seconds are let pass: the parts of one statement arrive one by one, and a busy machine takes its time.
--
-- Errors: JQ012.
create function forebay._require_alone(p_what text) returns void
language plpgsql volatile
as $$
begin
    if not forebay._is_alone() then
        raise exception using
            errcode = 'JQ012',
            message = format('%s must be called alone, in its own READ COMMITTED transaction', p_what),
            detail = jsonb_build_object('function', p_what),
            hint = 'Call it on a connection in autocommit mode, as a statement of its own.';
    end if;
end
$$;


-- One job as a claim hands it out: a JSON array of seq, kind, when it was enqueued (microseconds since 1970) and args; and
-- when one of them says something, of job_id, expires_at (microseconds), attempt, max_attempts, pauses, tag, correlation_id
-- and headers.
create function forebay._job_json(
    p_seq bigint, p_job_id bigint, p_enqueued_at timestamptz, p_expires_at timestamptz, p_attempt integer,
    p_max_attempts integer, p_pauses integer, p_kind text, p_args jsonb, p_tag text, p_correlation_id text, p_headers jsonb)
returns text
language sql stable
as $$
    select '[' || p_seq || ',"' || p_kind || '",' || (date_part('epoch', p_enqueued_at) * 1000000)::bigint || ',' || p_args
           || case when num_nonnulls(p_job_id, p_expires_at, p_attempt, p_max_attempts, p_pauses, p_tag, p_correlation_id, p_headers) = 0
                   then ']'
                   else ',' || ltrim(json_build_array(
                       coalesce(p_job_id, p_seq), (date_part('epoch', p_expires_at) * 1000000)::bigint, p_attempt, p_max_attempts, p_pauses,
                       p_tag, p_correlation_id, p_headers)::text, '[') end
$$;


-- A lane that a group may claim from, and up to which snapshot it has.
create type forebay._place as (
    group_id bigint, lane bigint, queue text, priority integer, audience bigint, snap pg_snapshot, claimed_at timestamptz);


-- Make one segment: its table, its indexes, its functions, its registry row.
--
-- CREATE TABLE (LIKE) + CHECK + ATTACH takes SHARE UPDATE EXCLUSIVE on the log, which waits for
-- nobody who reads or writes it (PARTITION OF would wait for all of them).
--
-- Locks: the caller holds the maintenance key.
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
    execute format('create index on %s (expires_at) where expires_at is not null', v_leaf);
    execute format('create index on %s (lane, seq) where ordering_key is not null', v_leaf);
    execute format('create index on %s ((lane >> 48), xid, lane) where lane & 1 = 1', v_leaf);  -- Lanes of limit keys.
    execute format('create index on %s using brin (seq) with (pages_per_range = 32)', v_leaf);
    execute format('revoke all on %s from public', v_leaf);
    execute format('alter table forebay.log attach partition %s for values from (%s) to (%s)', v_leaf, p_lo, p_hi);
    -- It has spared the attachment a look at all rows; kept, each INSERT would read its text anew.
    execute format('alter table %s drop constraint seq_range', v_leaf);

    perform forebay._make_readers(p_segment_id, p_hi);
    insert into forebay.segment (segment_id, lo, hi, created_at)
    values (p_segment_id, p_lo, p_hi, forebay._now());
end
$$;


-- Make the functions of one segment, or make them anew: a migration that changes one of them calls this for each segment.
--
-- Locks: the caller holds the maintenance key.
create function forebay._make_readers(p_segment_id bigint, p_hi bigint) returns void
language plpgsql volatile
as $$
declare
    v_leaf text := format('forebay.log_%s', p_segment_id);
begin
    -- Rows of one lane that a window covers, in the order (xid, seq), after a position.
    -- Range part: from the window's start on. Late part: xids that were in progress at its start.
    execute format($reader$
        create or replace function forebay._read_%1$s(
            p_lane bigint, p_from_xmax xid8, p_to pg_snapshot, p_late xid8[],
            p_pos_xid xid8, p_pos_seq bigint, p_limit integer) returns forebay.log[]
        language plpgsql stable
        as $body$
        declare
            v_lo_xid xid8 := p_from_xmax;
            v_lo_seq bigint := -1;
        begin
            if p_pos_xid >= p_from_xmax then
                v_lo_xid := p_pos_xid;
                v_lo_seq := p_pos_seq;
            end if;
            if cardinality(p_late) = 0 then
                return array(
                    select row(l.*)::forebay.log
                    from %2$s l
                    where l.lane = p_lane
                      and (l.xid, l.seq) > (v_lo_xid, v_lo_seq)
                      and l.xid < pg_snapshot_xmax(p_to)
                      and pg_visible_in_snapshot(l.xid, p_to)
                    order by l.xid, l.seq
                    limit p_limit);
            end if;
            return array(
                select w.r
                from (
                    (select row(l.*)::forebay.log as r, l.xid as x, l.seq as s
                     from unnest(p_late) as late (xid),
                          lateral (select * from %2$s i
                                   where i.lane = p_lane and i.xid = late.xid
                                     and (i.xid, i.seq) > (p_pos_xid, p_pos_seq)
                                   order by i.seq limit p_limit) l)
                    union all
                    (select row(l.*)::forebay.log, l.xid, l.seq
                     from %2$s l
                     where l.lane = p_lane
                       and (l.xid, l.seq) > (v_lo_xid, v_lo_seq)
                       and l.xid < pg_snapshot_xmax(p_to)
                       and pg_visible_in_snapshot(l.xid, p_to)
                     order by l.xid, l.seq
                     limit p_limit)
                ) w
                order by w.x, w.s
                limit p_limit);
        end
        $body$
    $reader$, p_segment_id, v_leaf);

    -- Rows of a lane of keyed jobs that a window covers, in the order of their numbers: what began after the window's
    -- start has a number above p_low; what was at work then is looked for by its xid below that.
    execute format($reader$
        create or replace function forebay._read_keyed_%1$s(
            p_lane bigint, p_from pg_snapshot, p_low bigint, p_to pg_snapshot, p_late xid8[], p_pos_seq bigint, p_limit integer)
        returns forebay.log[]
        language plpgsql stable
        as $body$
        begin
            return array(
                select w.r
                from (
                    (select row(l.*)::forebay.log as r, l.seq as s
                     from unnest(p_late) as late (xid),
                          lateral (select * from %2$s i
                                   where i.lane = p_lane and i.xid = late.xid and i.seq > p_pos_seq and i.seq <= p_low
                                   order by i.seq limit p_limit) l)
                    union all
                    (select row(l.*)::forebay.log, l.seq
                     from %2$s l
                     where l.lane = p_lane and l.ordering_key is not null and l.seq > greatest(p_low, p_pos_seq)
                       and pg_visible_in_snapshot(l.xid, p_to)
                       and not pg_visible_in_snapshot(l.xid, p_from)
                     order by l.seq
                     limit p_limit)
                ) w
                order by w.s
                limit p_limit);
        end
        $body$
    $reader$, p_segment_id, v_leaf);

    -- Rows of keyed jobs by their places.
    execute format($fetch$
        create or replace function forebay._fetch_%1$s(p_lanes bigint[], p_seqs bigint[]) returns forebay.log[]
        language plpgsql stable
        as $body$
        begin
            return array(
                select row(l.*)::forebay.log
                from unnest(p_lanes, p_seqs) as u (lane, seq),
                     lateral (select * from %2$s i
                              where i.lane = u.lane and i.seq = u.seq and i.ordering_key is not null limit 1) l);
        end
        $body$
    $fetch$, p_segment_id, v_leaf);
    execute format('revoke all on function forebay._read_keyed_%s from public', p_segment_id);
    execute format('revoke all on function forebay._fetch_%s from public', p_segment_id);

    -- Lanes of limit keys of a queue (p_shelf) to which something came between two snapshots, from at most p_most pairs of a
    -- transaction and a lane. It skips from one pair to the next, however many jobs each has.
    execute format($arrivals$
        create or replace function forebay._arrivals_%1$s(
            p_shelf bigint, p_from pg_snapshot, p_to pg_snapshot, p_late xid8[], p_most integer, out pairs integer, out lanes bigint[])
        language plpgsql stable
        as $body$
        begin
            pairs := 0;
            if not exists (select from %2$s l
                           where l.lane >> 48 = p_shelf and l.lane & 1 = 1
                             and l.xid >= pg_snapshot_xmax(p_from) and l.xid < pg_snapshot_xmax(p_to))
               and p_late = '{}' then
                return;
            end if;
            with recursive step as (
                (select i.xid, i.lane from %2$s i
                 where i.lane >> 48 = p_shelf and i.lane & 1 = 1
                   and i.xid >= pg_snapshot_xmax(p_from) and i.xid < pg_snapshot_xmax(p_to)
                 order by i.lane >> 48, i.xid, i.lane limit 1)
                union all
                select n.xid, n.lane from step s, lateral (
                    select i.xid, i.lane from %2$s i
                    where i.lane >> 48 = p_shelf and i.lane & 1 = 1
                      and (i.xid, i.lane) > (s.xid, s.lane) and i.xid < pg_snapshot_xmax(p_to)
                    order by i.lane >> 48, i.xid, i.lane limit 1) n
            ), late as (
                select f.xid, f.lane from unnest(p_late) x (xid), lateral (
                    select i.xid, i.lane from %2$s i
                    where i.lane >> 48 = p_shelf and i.lane & 1 = 1 and i.xid = x.xid
                    order by i.lane >> 48, i.xid, i.lane limit 1) f
                union all
                select n.xid, n.lane from late s, lateral (
                    select i.xid, i.lane from %2$s i
                    where i.lane >> 48 = p_shelf and i.lane & 1 = 1 and i.xid = s.xid and i.lane > s.lane
                    order by i.lane >> 48, i.xid, i.lane limit 1) n
            )
            select count(*), array_agg(distinct u.lane) filter (where pg_visible_in_snapshot(u.xid, p_to))
            into pairs, lanes
            from (select * from (select * from step union all select * from late) a limit p_most) u;
        end
        $body$
    $arrivals$, p_segment_id, v_leaf);
    execute format('revoke all on function forebay._arrivals_%s from public', p_segment_id);

    -- Has a lane anything that is not visible in its snapshot? Asked of the tail segment and the one before, of all lanes at once.
    execute format($probe$
        create or replace function forebay._moved_%1$s(p_places forebay._place[], p_moved boolean[]) returns boolean[]
        language plpgsql stable
        as $body$
        begin
            return array(
                select case
                    when p.moved then true
                    when exists (select from %2$s l where l.lane = p.lane and l.xid >= pg_snapshot_xmax(p.snap)) then true
                    when pg_snapshot_xmin(p.snap) = pg_snapshot_xmax(p.snap) then false
                    else exists (
                        select from pg_snapshot_xip(p.snap) as late (xid)
                        where exists (select from %2$s l where l.lane = p.lane and l.xid = late.xid)) end
                from rows from (unnest(p_places), unnest(p_moved)) with ordinality
                     as p (group_id, lane, queue, priority, audience, snap, claimed_at, moved, nr)
                order by p.nr);
        end
        $body$
    $probe$, p_segment_id, v_leaf);

    -- The claim of jobs that all lie in this segment, in one statement: what claims nearly always come to, at half the
    -- cost of forebay._take(), which does whatever this leaves. It takes nothing, and returns null, unless
    --   * the lane has a cursor, its group is not paused, and it is no lane of suspects,
    --   * no late committer is among what the window in hand, or the next one, has to deliver,
    --   * either nothing outside this segment can be in either window (`whole`), or p_limit jobs of the window in hand
    --     are found here,
    --   * none of the jobs is cancelled or expired,
    --   * the lease is open.
    -- With `whole` both windows are one range of the index: without late committers, who began before the end of the
    -- first and is visible in it is visible now, and the reverse.
    --
    -- Most of what it costs is the making of its expressions, anew in each transaction: each column counts.
    execute format($take$
        create or replace function forebay._take_%1$s(
            p_lease_id bigint, p_claim_no bigint, p_floor bigint, p_group_id bigint, p_lane bigint, p_limit integer)
        returns text
        language plpgsql volatile
        as $body$
        declare
            v_jobs text;
        begin
            with cur as materialized (
                select b.no, b.snap_from, b.snap_to, b.stop, b.pos_xid, b.pos_seq, b.high_seq, b.handed_total, b.skipped_total,
                       b.whole, case when b.whole then pg_current_snapshot() else b.snap_to end as upto, forebay._now() as at
                from (select n.no, n.snap_from, n.snap_to, n.pos_segment, n.pos_xid, n.pos_seq, n.high_seq, n.handed_total,
                             n.skipped_total, s.stop,
                             pg_sequence_last_value('forebay.log_seq') < %3$s
                             and (pg_snapshot_xmin(s.stop) = pg_snapshot_xmax(s.stop)
                                  or not exists (select from pg_snapshot_xip(s.stop) late (xid)
                                                 where pg_visible_in_snapshot(late.xid, pg_current_snapshot())))
                             and %4$s as whole
                      from forebay.batch n, lateral (select coalesce(n.snap_to, n.snap_from) as stop) s
                      where n.group_id = p_group_id and n.lane = p_lane
                      order by n.no desc limit 1) b
                where (b.snap_to is null
                       or b.pos_segment = %1$s
                       and (pg_snapshot_xmin(b.snap_from) = pg_snapshot_xmax(b.snap_from)
                            or not exists (select from pg_snapshot_xip(b.snap_from) late (xid)
                                           where pg_visible_in_snapshot(late.xid, b.snap_to))))
                  and exists (select from forebay.queue_group g where g.group_id = p_group_id and g.paused_at is null)
                  and not exists (select from forebay.lane l where l.lane = p_lane and l.audience < 0)
            ), taken as materialized (
                select count(*)::integer as size, array_agg(t.seq) as seqs, array_agg(t.xid) as xids, max(t.seq) as high,
                       array_agg(t.job_id) as job_ids, min(coalesce(t.expires_at, t.enqueued_at + interval '30 days')) as expires,
                       string_agg(t.job, ',') as jobs
                from cur, lateral (
                    select j.seq, j.xid, j.expires_at, j.enqueued_at, coalesce(j.job_id, j.seq) as job_id,
                           forebay._job_json(j.seq, j.job_id, j.enqueued_at, j.expires_at, j.attempt, j.max_attempts, j.pauses,
                                             j.kind, j.args, j.tag, j.correlation_id, j.headers) as job
                    from %2$s j
                    where j.lane = p_lane
                      and (j.xid, j.seq) > (greatest(pg_snapshot_xmax(cur.snap_from), cur.pos_xid),
                                            case when cur.pos_xid >= pg_snapshot_xmax(cur.snap_from) then cur.pos_seq else -1 end)
                      and j.xid < pg_snapshot_xmax(cur.upto)
                      and pg_visible_in_snapshot(j.xid, cur.upto)
                    order by j.xid, j.seq
                    limit p_limit) t
            ), written as (
                insert into forebay.batch (
                    group_id, lane, no, lease_id, claim_no, floor, snap_from, snap_to, pos_segment, pos_xid, pos_seq,
                    high_seq, handed_total, skipped_total, claimed_at, seqs, xids)
                select p_group_id, p_lane, c.no + 1, p_lease_id, p_claim_no, p_floor,
                       -- Used up, still in the window in hand, or in the next one.
                       case when t.size < p_limit then c.upto when t.xids[t.size] < pg_snapshot_xmax(c.stop) then c.snap_from else c.stop end,
                       case when t.size < p_limit then null when t.xids[t.size] < pg_snapshot_xmax(c.stop) then c.snap_to else c.upto end,
                       case when t.size < p_limit then 0 else %1$s end,
                       case when t.size < p_limit then '0' else t.xids[t.size] end,
                       case when t.size < p_limit then 0 else t.seqs[t.size] end,
                       greatest(c.high_seq, t.high), c.handed_total + t.size, c.skipped_total, c.at,
                       t.seqs, case when t.xids[1] = all (t.xids) then t.xids[:1] else t.xids end
                from cur c, taken t,
                     (select from forebay.lease i
                      where i.lease_id = p_lease_id and i.closed_at is null
                      for key share) held
                where t.size > 0 and (c.whole or t.size = p_limit) and t.expires > c.at
                  and (pg_sequence_last_value('forebay.tombstone_seq') is null
                       or not exists (select from forebay.tombstone x where x.job_id = any (t.job_ids)))
                returning true
            )
            select t.jobs into v_jobs from written, taken t;
            return v_jobs;
        end
        $body$
    $take$, p_segment_id, v_leaf, p_hi,
        case when exists (select from forebay.segment s where s.segment_id = p_segment_id - 1)
             then format('exists (select from forebay.seal f where f.segment_id = %s and f.xid <= pg_snapshot_xmax(s.stop))', p_segment_id - 1)
             else 'true' end);

    execute format('revoke all on function forebay._take_%s from public', p_segment_id);
    execute format('revoke all on function forebay._read_%s from public', p_segment_id);
    execute format('revoke all on function forebay._moved_%s from public', p_segment_id);
end
$$;


-- Make segments until the reserve ahead of the sequence is full; returns how many were made.
--
-- Invariant "room to write": no enqueue fails because maintenance did not run. The reserve is what
-- producers can use up while no worker runs.
--
-- Parameters: p_most, the most segments to make in this call.
-- Errors: 55P03 when somebody holds a lock on the log for longer than the lock_timeout; try again.
-- Locks: the maintenance key; SHARE UPDATE EXCLUSIVE on the log.
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
    if not pg_try_advisory_xact_lock(forebay._lock_class(), 1) then
        return 0;
    end if;
    v_last := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    select s.segment_id, s.hi into v_id, v_hi from forebay.segment s order by s.segment_id desc limit 1;
    v_id := coalesce(v_id, -1);
    v_hi := coalesce(v_hi, 1);
    -- The last segment of all ends at the end of bigint.
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


-- Numbers below this one belong to the archive of another cluster, which an adoption sealed with no xid at all:
-- whatever is there has ended, or goes on in a newer row. 0 in a log that was never adopted.
create function forebay._archived_below() returns bigint
language sql stable
as $$
    select coalesce(max(s.hi), 0) from forebay.seal f join forebay.segment s using (segment_id) where f.xid = '0'
$$;


-- Seal every segment the sequence has passed; returns how many were sealed.
--
-- A row draws its xid before its number, so once last_value has passed the end of a segment, every
-- row of it has an xid below one drawn *afterwards*: that one is recorded. (The xmin of a snapshot
-- taken then would not do: a writer may have drawn its xid, and not yet shown it.)
--
-- Errors: JQ012 unless called alone, JQ030 foreign cluster.
-- Locks: the maintenance key.
create function forebay.seal_v1() returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last   bigint;
    v_sealed integer;
begin
    perform forebay._require_alone('forebay.seal_v1()');
    perform forebay._require_home();
    if not pg_try_advisory_xact_lock(forebay._lock_class(), 1) then
        return 0;
    end if;
    v_last := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);
    if not exists (
        select from forebay.segment s
        where s.hi <= v_last
          and s.segment_id > coalesce((select max(f.segment_id) from forebay.seal f), -1)) then
        return 0;
    end if;
    -- The xid is drawn in this later statement, by the insert.
    insert into forebay.seal (segment_id, xid, sealed_at)
    select s.segment_id, pg_current_xact_id(), forebay._now()
    from forebay.segment s
    where s.hi <= v_last
      and s.segment_id > coalesce((select max(f.segment_id) from forebay.seal f), -1)
    order by s.segment_id;
    get diagnostics v_sealed = row_count;
    return v_sealed;
end
$$;
