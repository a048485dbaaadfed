-- grant: worker

-- Fold what was appended since the last folds into the counters of forebay.stats(), at most
-- `p_most` batches of each lane (at least 1); returns how many folds were appended. While that is
-- not 0 and `p_most` bounds the call, there may be more. `p_is_forced`: wait for the lock, and fold
-- groups without news too.
--
-- Errors: JQ001 a bad number, JQ030.
-- Transaction: any with `read committed`; usually alone.
-- Locks: the lock of the counters; returns 0 when another session has it.
-- See: docs/design/counters.md
--
-- Inside: Invariant "counters are exact": a fold is one statement's snapshot, and says which rows
-- it has. A read adds the others. So a fold may be late, partial or lost, and no read is wrong.
-- pages: 1000 + 100 a lane + 12 an uncounted job
create function forebay.fold_v1(p_most bigint default 10000, p_is_forced boolean default false) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: folds
as $$
declare
    v_found record;
    v_at    constant timestamptz := forebay._now();
begin
    if (p_most >= 1) is not true then
        raise exception using errcode = 'JQ001', message = format('a fold of %s batches does nothing', coalesce(p_most::text, 'null'));
    end if;
    perform forebay._require_same_cluster();
    if p_is_forced then
        lock table only forebay.lock_counters in share update exclusive mode;
    elsif not forebay._try_lock('counters') then
        return 0;
    end if;
    -- A transaction with one snapshot for all its statements does not see what the last holder of the lock committed.
    if current_setting('transaction_isolation') <> 'read committed' then
        return 0;
    end if;
    select r.*, forebay._snapshot_of_others() as snap into v_found from forebay._counter_read(null, p_most) r;

    -- New cells, as many as there may be; then the cell of the others.
    insert into forebay.counter_cell (group_id, queue, priority, kind, tag)
    select n.group_id, n.queue, n.priority, n.kind, n.tag
    from (select d.*, row_number() over (partition by d.group_id order by d.priority, d.kind, d.tag) as place
          from forebay._counter_places(v_found.bases, v_found.deltas) d where d.cell_id is null) n
    where n.place <= forebay._counter_cells() - (select count(*) from forebay.counter_cell c where c.group_id = n.group_id);
    insert into forebay.counter_cell (group_id, queue, priority, kind)
    select distinct d.group_id, d.queue, d.priority, '' from forebay._counter_places(v_found.bases, v_found.deltas) d where d.cell_id is null
    on conflict on constraint counter_cell_key do nothing;
    perform forebay._place_cells();

    if exists (select from unnest(v_found.deltas) d where d.event > 0) then
        perform forebay._keep_samples('minute', v_at), forebay._keep_samples('hour', v_at);
    end if;
    insert into forebay.counter (cell_id, segment_id, no, counted_at, totals)
    select n.cell_id, n.segment_id, coalesce(p.no, 0) + 1, v_at,
           array(select coalesce(o.total, 0) + coalesce(a.jobs, 0)
                 from generate_series(1, 58) i
                 left join unnest(p.totals) with ordinality o (total, event) on o.event = i
                 left join unnest(n.events, n.jobs) a (event, jobs) on a.event = i
                 order by i)
    from (select d.cell_id, d.segment_id, array_agg(d.event) as events, array_agg(d.jobs) as jobs
          from (select coalesce(c.cell_id, o.cell_id) as cell_id, s.segment_id, d.event, sum(d.jobs)::bigint as jobs
                from (select i.base, i.segment_id, i.priority, i.kind, i.tag, i.event, sum(i.jobs) as jobs
                      from unnest(v_found.deltas) i where i.event > 0 group by 1, 2, 3, 4, 5, 6) d
                join forebay._counter_places(v_found.bases, v_found.deltas) c
                     on c.base = d.base and c.priority = d.priority and c.kind = d.kind and coalesce(c.tag, '') = coalesce(d.tag, '') and (c.tag is null) = (d.tag is null)
                left join forebay.counter_cell o on c.cell_id is null and o.group_id = c.group_id and o.priority = c.priority and o.kind = '' and o.tag is null
                cross join lateral (select -1::bigint as segment_id union all select d.segment_id where d.segment_id <> -1) s
                group by 1, 2, 3) d
          group by d.cell_id, d.segment_id) n
    left join lateral (select i.no, i.totals from forebay.counter i
                       where i.cell_id = n.cell_id and i.segment_id = n.segment_id order by i.no desc limit 1) p on true;

    return forebay._append_folds(
        v_found.bases, v_found.lanes, v_found.opens, v_found.open_bases,
        array(select distinct d.base from unnest(v_found.deltas) d where d.event > 0), v_found.snap, v_at, p_is_forced);
end
$$;


-- Give cells their places among the label sets of the metrics by tag: the lowest free ones, in the order in which cells came.
--
-- Invariant "a label set stays": a cell that has a place keeps it while its group exists, and one without gets none until the setting is
-- raised, whatever becomes free. Otherwise its counts would leave `other`, which would go back.
create function forebay._place_cells() returns void
language plpgsql volatile
-- planner: in order
as $$
declare
    v_most constant integer := forebay._setting_value('metric_label_sets');
begin
    if v_most is null or v_most = 0 or not exists (select from forebay._unplaced_cells(v_most)) then
        return;
    end if;
    with asking as materialized (
        select u.cell_id, row_number() over (order by u.cell_id) as nr from forebay._unplaced_cells(v_most) u
    ), free as materialized (
        select p.place, row_number() over (order by p.place) as nr from generate_series(1, v_most) p (place)
        where not exists (select from forebay.counter_cell c where c.kind <> '' and c.place = p.place)
    )
    update forebay.counter_cell c
    set place = coalesce(f.place, -v_most)
    from asking a left join free f on f.nr = a.nr
    where c.cell_id = a.cell_id;
end
$$;


-- Cells that were never given a place, or refused one when there were fewer; the first ones, as many as a fold may update.
create function forebay._unplaced_cells(p_most integer) returns table (cell_id bigint)
language sql stable
-- planner: in order
as $$
    select c.cell_id from forebay.counter_cell c
    where c.kind <> '' and (c.place is null or c.place < 0 and c.place > -p_most)
    order by c.cell_id limit 5000
$$;


-- Append a fold for each group with news, and for one whose last fold is ten minutes old: a read looks at all transactions since then.
-- Returns how many. p_counted: the bases with new counts.
create function forebay._append_folds(
    p_bases forebay._counter_base[], p_lanes forebay._counter_lane[], p_opens forebay._counter_open[], p_open_bases bigint[],
    p_counted bigint[], p_snap pg_snapshot, p_at timestamptz, p_is_forced boolean)
returns integer
language plpgsql volatile
-- planner: arrays
as $$
declare
    v_folds integer;
begin
    insert into forebay.counter_fold (group_id, no, snap, folded_at, lanes, nos, open)
    select b.group_id, coalesce(b.no, 0) + 1, p_snap, p_at, coalesce(l.lanes, '{}'), coalesce(l.nos, '{}'), coalesce(o.open, '{}')
    from unnest(p_bases) b
    left join (select i.base, array_agg(i.lane) as lanes, array_agg(coalesce(i.last_no, 0)) as nos, bool_or(i.last_no > i.no) as is_new
               from unnest(p_lanes) i group by i.base) l on l.base = b.nr
    left join (select u.base, array_agg(row(u.lease_id, u.claim_no, u.flushes)::forebay._counter_open) as open
               from rows from (unnest(p_opens), unnest(p_open_bases)) u (lease_id, claim_no, flushes, base) group by u.base) o on o.base = b.nr
    left join (select i.base from unnest(p_counted) i (base)) c on c.base = b.nr
    where b.group_id <> 0
      and (p_is_forced or b.no is null or l.is_new or coalesce(o.open, '{}') <> b.open or c.base is not null
           or b.snap::text <> p_snap::text and b.folded_at not between p_at - interval '10 minutes' and p_at);
    get diagnostics v_folds = row_count;
    return v_folds;
end
$$;


-- The places that deltas are for, with their cells; null: they have none yet.
create function forebay._counter_places(p_bases forebay._counter_base[], p_deltas forebay._counter_delta[])
returns table (base bigint, group_id bigint, queue text, priority integer, kind text, tag text, cell_id bigint)
language sql stable
-- planner: folds
as $$
    select d.base, b.group_id, b.queue, d.priority, d.kind, d.tag, c.cell_id
    from (select distinct i.base, i.priority, i.kind, i.tag from unnest(p_deltas) i where i.event > 0) d
    join unnest(p_bases) b on b.nr = d.base and b.group_id <> 0
    left join (select i.* from unnest(p_bases) g cross join lateral (select j.* from forebay.counter_cell j where j.group_id = g.group_id offset 0) i where g.group_id <> 0) c
         on c.group_id = b.group_id and c.priority = d.priority and c.kind = d.kind and coalesce(c.tag, '') = coalesce(d.tag, '') and (c.tag is null) = (d.tag is null)
$$;


-- When a minute or an hour has begun, keep the totals that cells had before it, if they have changed since the last one.
create function forebay._keep_samples(p_step text, p_at timestamptz) returns void
language plpgsql volatile
-- planner: folds
as $$
declare
    v_begin constant timestamptz := date_trunc(p_step, p_at, 'UTC');
    v_last  timestamptz;
begin
    select s.at into v_last from forebay.counter_sample s where s.step = p_step order by s.at desc limit 1;
    if v_last >= v_begin then
        return;
    end if;
    insert into forebay.counter_sample (step, cell_id, at, totals)
    select p_step, c.cell_id, v_begin, n.totals
    from forebay.counter_cell c
    cross join lateral (select i.counted_at, i.totals from forebay.counter i
                        where i.cell_id = c.cell_id and i.segment_id = -1 order by i.no desc limit 1) n
    where n.counted_at >= coalesce(v_last, '-infinity') and n.counted_at < v_begin
    on conflict do nothing;
end
$$;
