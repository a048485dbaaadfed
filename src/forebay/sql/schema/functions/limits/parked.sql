-- Does a job with a limit key that a group's cursor has passed still wait for its key?
create function forebay._is_limit_parked(p_group_id bigint, p_limit_key text, p_xid xid8, p_seq bigint) returns boolean
language sql stable
as $$
    select exists (
        select from (select * from forebay.limit_run i
                     where i.group_id = p_group_id and i.limit_key = p_limit_key order by i.no desc limit 1) t
        cross join lateral (select * from forebay.limit_parked p
                            where p.group_id = p_group_id and p.limit_key = p_limit_key
                              and p.parked_no > coalesce(t.taken_up_to, 0) and p.parked_no <= t.parked_up_to
                              and p.xid = p_xid and p_seq between p.seq and p.seq_to limit 1) p
        where t.waiting > 0
          and (p_seq > coalesce(t.taken_seq, 0)
               or p.parked_no > (select n.parked_no from forebay.limit_parked n
                                 where n.group_id = p_group_id and n.limit_key = p_limit_key and n.parked_no > coalesce(t.taken_up_to, 0)
                                 order by n.parked_no limit 1)))
$$;


-- The batch with a row of a job with a limit key, or null. It may be of another lane than the row: a claim reads the public lane and
-- the private one, and takes parked jobs of any priority.
create function forebay._limited_batch_of(p_group_id bigint, p_limit_key text, p_lane bigint, p_seq bigint) returns forebay.batch
language plpgsql stable
as $$
declare
    v_batch forebay.batch;
    v_lane  bigint;
begin
    for v_batch in
        select b.* from forebay.limit_run t
        join forebay.batch b on b.lease_id = t.lease_id and b.claim_no = t.claim_no
        where t.group_id = p_group_id and t.limit_key = p_limit_key and t.low_seq <= p_seq and t.high_seq >= p_seq
          and p_seq = any (b.seqs)
        order by t.no desc limit 1
    loop
        return v_batch;
    end loop;
    for v_lane in
        select distinct i.lane from forebay.lane l join forebay.lane i on i.queue = l.queue and i.priority = l.priority and i.sort = 'limited'
        where l.lane = p_lane and i.audience in (0, p_group_id, -p_group_id)
    loop
        v_batch := forebay._batch_of(p_group_id, v_lane, p_seq);
        if v_batch.no is not null then
            return v_batch;
        end if;
    end loop;
    return null;
end
$$;


-- The limit keys with parked jobs, and their states' newest rows.
create function forebay._waiting_limit_keys(p_group_id bigint) returns setof forebay.limit_run
language sql stable
as $$
    with recursive key as (
        (select p.limit_key from forebay.limit_parked p where p.group_id = p_group_id order by p.limit_key limit 1)
        union all
        select n.limit_key
        from key k, lateral (
            select p.limit_key from forebay.limit_parked p
            where p.group_id = p_group_id and p.limit_key > k.limit_key order by p.limit_key limit 1) n
    )
    select t.* from key k
    cross join lateral (select * from forebay.limit_run i
                        where i.group_id = p_group_id and i.limit_key = k.limit_key order by i.no desc limit 1) t
    where t.waiting > 0
$$;


-- The runs of parked jobs that are not taken, of all groups.
create function forebay._all_limit_parked()
returns table (group_id bigint, limit_key text, lane bigint, xid xid8, after bigint, seq_to bigint, jobs bigint, parked_no bigint)
language sql stable
as $$
    select t.group_id, t.limit_key, p.lane, p.xid, greatest(p.seq - 1, p.after), p.seq_to,
           p.jobs - case when p.after is not null then coalesce(t.taken_jobs, 0) else 0 end, p.parked_no
    from forebay.queue_group g
    cross join lateral forebay._waiting_limit_keys(g.group_id) t
    cross join lateral (
        select i.*, case when row_number() over (order by i.parked_no) = 1 then coalesce(t.taken_seq, 0) end as after
        from forebay.limit_parked i
        where i.group_id = t.group_id and i.limit_key = t.limit_key and i.parked_no > coalesce(t.taken_up_to, 0) and i.parked_no <= t.parked_up_to) p
    where p.ordering_key is null  -- A job with an ordering key waits there.
$$;


-- All jobs that wait behind a cursor for a key, by lane: parked or requeued. jobs: with a limit key, how many in one run.
create function forebay._all_parked()
returns table (group_id bigint, lane bigint, seq bigint, place bigint, jobs bigint)
language sql stable
as $$
    select p.group_id, p.lane, p.seq, p.place, 1::bigint from forebay._all_ordering_parked() p
    where pg_sequence_last_value('forebay.key_seq') is not null
    union all
    select p.group_id, p.lane, p.after + 1, p.parked_no, p.jobs from forebay._all_limit_parked() p
    where pg_sequence_last_value('forebay.limit_parked_seq') is not null
$$;


-- The same with the rows of the jobs, for the groups of a queue; null: of all queues.
create function forebay._parked_jobs(p_queue text default null)
returns table (group_id bigint, place bigint, job forebay.log)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    if pg_sequence_last_value('forebay.key_seq') is not null then
        return query
        select p.group_id, p.place, u
        from (select a.group_id, array_agg(a.lane) as lanes, array_agg(a.seq) as seqs
              from forebay._all_ordering_parked() a
              where p_queue is null or exists (select from forebay.lane l where l.lane = a.lane and l.queue = p_queue)
              group by a.group_id) g
        cross join lateral unnest(forebay._fetch(g.lanes, g.seqs)) u
        join forebay._all_ordering_parked() p on p.group_id = g.group_id and p.lane = u.lane and p.seq = u.seq;
    end if;
    if pg_sequence_last_value('forebay.limit_parked_seq') is null then
        return;
    end if;
    return query
    select (a.groups)[f.nr], (a.nos)[f.nr], f.job
    from (select array_agg(p.group_id) as groups, array_agg(p.parked_no) as nos, array_agg(p.nr) as nrs, array_agg(p.lane) as lanes,
                 array_agg(p.xid) as xids, array_agg(p.after) as afters, array_agg(p.seq_to) as seqs_to, array_agg(p.jobs) as most
          from (select i.*, row_number() over () as nr from forebay._all_limit_parked() i
                where p_queue is null or exists (select from forebay.lane l where l.lane = i.lane and l.queue = p_queue)) p) a
    cross join lateral forebay._fetch_limited(a.nrs, a.lanes, a.xids, a.afters, a.seqs_to, a.most) b
    cross join lateral (select unnest(b.nrs) as nr, unnest(b.jobs) as job) f;
end
$$;
