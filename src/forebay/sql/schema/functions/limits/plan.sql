-- The plan of a limited claim: how many items are used, and how many jobs each key gets: first an even part, then what is left in the order
-- of the turns.
--
-- Parameters: p_keys, the keys of the items, in the order of their states; p_suspect: the claim of a suspect. The planner settings of
-- forebay._take_limited() hold here too.
create function forebay._plan_limited(
    p_items forebay._limit_item[], p_keys text[], p_states forebay._limit_state[], p_limit integer, p_suspect boolean)
returns forebay._limit_plan
language plpgsql volatile
as $$
declare
    v_plan forebay._limit_plan;
begin
    with item as materialized (
        select i.jobs, i.turn, i.ordinality as pos, k.nr
        from unnest(p_items) with ordinality i
        join unnest(p_keys) with ordinality k (key, nr) on k.key = i.limit_key
    ), state as materialized (
        select s.ordinality as nr, case when p_suspect then 0 else s.waiting end as waiting, s.turn, greatest(s.permits, 0) as permits
        from unnest(p_states) with ordinality s
    ), met as materialized (
        select s.nr, s.waiting, s.permits,
               min(i.pos) filter (where i.jobs = 0 and s.waiting > 0 and (i.turn is null or i.turn = s.turn & 2147483647)) as turn_at,
               min(i.pos) filter (where i.jobs > 0) as first_at
        from state s join item i on i.nr = s.nr
        group by s.nr, s.waiting, s.permits
    ), cut as materialized (
        select coalesce((select c.at - 1
                         from (select case when m.waiting > 0 then m.turn_at else m.first_at end as at from met m where m.permits > 0) c
                         where c.at is not null order by c.at offset p_limit limit 1), cardinality(p_items))::integer as at
    ), wish as materialized (
        select m.nr, coalesce(m.turn_at <= c.at, false) as has_turn, least(coalesce(m.turn_at, m.first_at), coalesce(m.first_at, m.turn_at)) as at,
               least(m.permits, case when m.waiting = 0 then coalesce(n.jobs, 0)
                                     when m.turn_at <= c.at then m.waiting + coalesce(n.jobs, 0) else 0 end) as jobs
        from met m cross join cut c
        left join lateral (select sum(i.jobs) as jobs from item i where i.nr = m.nr and i.pos <= c.at) n on true
    ), part as materialized (
        select w.nr, w.jobs, w.at, least(w.jobs, q.quota) as first
        from wish w, (select greatest(1, p_limit / greatest(1, count(*) filter (where u.jobs > 0))) as quota from wish u) q
    ), given as materialized (
        select p.nr, p.first + least(p.jobs - p.first, greatest(0, p_limit - sum(p.first) over ()
            - coalesce(sum(p.jobs - p.first) over (order by p.at, p.nr rows between unbounded preceding and 1 preceding), 0))) as jobs, p.at
        from part p
    )
    select (select c.at from cut c) as used,
           (select array_agg(g.jobs::bigint order by g.nr) from given g) as jobs,
           (select array_agg(g.at order by g.nr) from given g) as places,
           (select array_agg(w.has_turn order by w.nr) from wish w) as has_turn
    into v_plan;
    return v_plan;
end
$$;


-- The pieces of runs that a limited claim takes by its plan: of each key its parked ones, then those just read.
create function forebay._limited_pieces(
    p_group_id bigint, p_plan forebay._limit_plan, p_items forebay._limit_item[], p_states forebay._limit_state[])
returns forebay._limit_pieces
language plpgsql volatile
as $$
declare
    v_pieces forebay._limit_pieces;
begin
    with key as materialized (
        select k.nr, k.jobs, k.at, k.has_turn, s.limit_key, s.parked_up_to, s.taken_up_to, s.taken_seq, s.taken_jobs
        from unnest(p_plan.jobs, p_plan.places, p_plan.has_turn) with ordinality k (jobs, at, has_turn, nr)
        join unnest(p_states) with ordinality s on s.ordinality = k.nr
        where k.jobs > 0
    ), piece as (
        select k.nr, k.jobs as most, k.at, 1 as class, p.parked_no as place, p.lane, p.xid,
               case when p.is_first then greatest(p.seq - 1, k.taken_seq) else p.seq - 1 end as after, p.seq_to,
               p.jobs - case when p.is_first then k.taken_jobs else 0 end as jobs, p.ordering_key
        from key k cross join lateral (
            select i.*, row_number() over (order by i.parked_no) = 1 as is_first
            from forebay.limit_parked i
            where i.group_id = p_group_id and i.limit_key = k.limit_key and i.parked_no > k.taken_up_to and i.parked_no <= k.parked_up_to
            order by i.parked_no limit k.jobs) p
        where k.has_turn
        union all
        select k.nr, k.jobs, k.at, 2, i.ordinality, i.lane, i.xid, i.seq - 1, i.seq_to, i.jobs, null
        from key k join unnest(p_items) with ordinality i on i.limit_key = k.limit_key
        where i.jobs > 0 and i.ordinality <= p_plan.used
    ), chosen as materialized (
        select p.*, row_number() over (order by p.at, p.nr, p.class, p.place) as piece_no, least(p.jobs, p.most - p.before) as take
        from (select q.*, coalesce(sum(q.jobs) over (partition by q.nr order by q.class, q.place rows between unbounded preceding and 1 preceding), 0) as before
              from piece q) p
        where p.before < p.most
    )
    select coalesce(array_agg(c.piece_no order by c.piece_no), '{}') as nrs, array_agg(c.nr order by c.piece_no) as keys,
           array_agg(c.class order by c.piece_no) as classes, array_agg(c.place order by c.piece_no) as places,
           array_agg(c.lane order by c.piece_no) as lanes, array_agg(c.xid order by c.piece_no) as xids,
           array_agg(c.after order by c.piece_no) as afters, array_agg(c.seq_to order by c.piece_no) as seqs_to,
           array_agg(c.jobs::bigint order by c.piece_no) as jobs, array_agg(c.take::bigint order by c.piece_no) as takes,
           coalesce(array_agg(c.ordering_key order by c.piece_no), '{}') as ordering_keys
    into v_pieces
    from chosen c;
    return v_pieces;
end
$$;


-- The rows of pieces, without those of jobs with ordering keys: these are not taken here.
create function forebay._fetch_pieces(p_pieces forebay._limit_pieces, out nrs bigint[], out jobs forebay.log[])
language sql volatile
as $$
    select f.nrs, f.jobs
    from (select array_agg(u.nr) as nrs, array_agg(u.lane) as lanes, array_agg(u.xid) as xids, array_agg(u.after) as afters,
                 array_agg(u.seq_to) as seqs_to, array_agg(u.take) as takes
          from unnest(p_pieces.nrs, p_pieces.lanes, p_pieces.xids, p_pieces.afters, p_pieces.seqs_to, p_pieces.takes, p_pieces.ordering_keys)
               u (nr, lane, xid, after, seq_to, take, ordering_key)
          where u.ordering_key is null) u
    cross join lateral forebay._fetch_limited(u.nrs, u.lanes, u.xids, u.afters, u.seqs_to, u.takes) f
$$;
