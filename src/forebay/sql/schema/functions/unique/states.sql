-- The states of one job in two groups, merged: n not read, ? not known, else as forebay._key_state().
create function forebay._merged_key_state(p_one text, p_other text) returns text
language sql immutable
as $$
    select case when p_one is null or p_one = 'n' then p_other
                when p_other in ('n', p_one) then p_one
                when p_one = '?' or p_other = '?' then '?'
                else 'running' end
$$;


-- States of the jobs of many generations, as in forebay._key_state(), in the order of the generations. A generation may be null:
-- ended. A throttle waits until its period is over.
--
-- In each lane with many of them, the batches of all are searched together by their highest numbers, which only rise. A batch
-- that contains the number has disposed of it; for all other numbers forebay._key_state() decides.
create function forebay._key_states_of(p_keys forebay.unique_key[]) returns text[]
language plpgsql stable
as $$
declare
    v_now      constant timestamptz := forebay._now();
    v_archived constant bigint := forebay._archived_below();
    v_key_states   text[] := array_fill(null::text, array[cardinality(p_keys)]);
    v_lane     record;
    v_newest   record;
    v_row      record;
    v_key      forebay.unique_key;
    v_places   bigint[];
    v_seqs     bigint[];
    v_lo       bigint;
    v_step     bigint;
    v_nos      bigint[];
    v_highs    bigint[];
    v_place    integer := 0;
begin
    for v_lane in
        select l.queue, l.lane, g.group_id, g.start_after
        from (select k.queue, k.lane from unnest(p_keys) k
              where not k.is_deferred and k.mode <> 't' group by 1, 2 having count(*) >= 8) l
        left join forebay.queue_group g on g.queue = l.queue
    loop
        select b.no, b.high_seq, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq into v_newest
        from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
        where b.group_id = v_lane.group_id and b.lane = v_lane.lane order by b.no desc limit 1;
        v_places := '{}';
        v_seqs := '{}';
        for v_row in
            select k.ordinality as place, k.job_id,
                   case when pg_visible_in_snapshot(k.xid, v_lane.start_after) then 'n'
                        when k.job_id < v_archived or forebay._is_moved(k.job_id, v_lane.group_id, k.job_id) then '?'
                        when v_newest.high_seq >= k.job_id
                             and forebay._is_consumed(k.xid, k.job_id, v_newest.snap_from, v_newest.snap_to, v_newest.lo, v_newest.hi,
                                                      v_newest.pos_xid, v_newest.pos_seq) then null
                        when k.expires_at <= v_now
                             or exists (select from forebay.tombstone t
                                        where t.job_id = k.job_id and t.reason <> 'k'
                                          and (t.group_id is null or t.group_id = v_lane.group_id)) then 'ended'
                        else 'waiting' end as key_state
            from unnest(p_keys) with ordinality k
            where k.queue = v_lane.queue and k.lane = v_lane.lane and not k.is_deferred and k.mode <> 't'
        loop
            if v_row.key_state is null then
                v_places := v_places || v_row.place;
                v_seqs := v_seqs || v_row.job_id;
            else
                v_key_states[v_row.place] := forebay._merged_key_state(v_key_states[v_row.place], v_row.key_state);
            end if;
        end loop;
        continue when cardinality(v_places) = 0;

        -- A batch before all of them, searched backwards from the newest one; then some between, evenly.
        v_lo := v_newest.no;
        v_step := 1;
        loop
            v_lo := greatest(v_lo - v_step, 0);
            exit when not exists (select from forebay.batch b
                                  where b.group_id = v_lane.group_id and b.lane = v_lane.lane and b.no = v_lo
                                    and b.high_seq >= (select min(q) from unnest(v_seqs) q));
            v_step := v_step * 2;
        end loop;
        select array_agg(m.no), array_agg(m.high_seq) into v_nos, v_highs
        from (select b.no, b.high_seq
              from generate_series(v_lo + 1, v_newest.no, 1 + (v_newest.no - v_lo) / 256) n,
                   lateral (select b.no, b.high_seq from forebay.batch b
                            where b.group_id = v_lane.group_id and b.lane = v_lane.lane and b.no = n offset 0) b
              order by b.no) m;
        v_nos := v_lo || v_nos || v_newest.no;
        v_highs := 0::bigint || v_highs || v_newest.high_seq;

        for v_row in
            with recursive sought (place, seq, lo, hi) as (
                select q.place, q.seq, v_nos[q.bucket], v_nos[q.bucket + 1]
                from (select u.place, u.seq, width_bucket(u.seq - 1, v_highs) as bucket
                      from unnest(v_places, v_seqs) u (place, seq) offset 0) q
                union all
                select q.place, q.seq,
                       case when b.high_seq >= q.seq then q.lo else (q.lo + q.hi) / 2 end,
                       case when b.high_seq >= q.seq then (q.lo + q.hi) / 2 else q.hi end
                from sought q
                left join lateral (select b.high_seq from forebay.batch b
                                   where b.group_id = v_lane.group_id and b.lane = v_lane.lane and b.no = (q.lo + q.hi) / 2
                                   offset 0) b on true
                where q.hi - q.lo > 1)
            select q.place,
                   case when f.at is not null and b.is_whole then 'ended'
                        when f.at is not null then coalesce((
                            select case when coalesce(s.outcomes[array_position(s.offsets, f.at)], 'd') in ('d', 'c', 'x', 'y') then 'ended' else '?' end
                            from forebay.settlement s
                            where s.lease_id = b.lease_id and s.claim_no = b.claim_no and f.at = any (s.offsets) limit 1), 'running')
                        when b.skipped_as[array_position(b.skipped, q.seq)] in ('c', 'e') then 'ended'
                        else '?' end as key_state
            from (select q.hi as no, array_agg(q.place) as places, array_agg(q.seq) as seqs from sought q
                  where q.hi - q.lo = 1 group by q.hi) n
            cross join lateral (
                select b.lease_id, b.claim_no, b.seqs || '{}'::bigint[] as seqs, b.skipped || '{}'::bigint[] as skipped, b.skipped_as,
                       exists (select from forebay.settlement s
                               where s.lease_id = b.lease_id and s.claim_no = b.claim_no and s.offsets is null) as is_whole
                from forebay.batch b where b.group_id = v_lane.group_id and b.lane = v_lane.lane and b.no = n.no
                offset 0) b
            cross join lateral unnest(n.places, n.seqs) q (place, seq)
            cross join lateral (select array_position(b.seqs, q.seq)::smallint as at offset 0) f
        loop
            v_key_states[v_row.place] := forebay._merged_key_state(v_key_states[v_row.place], v_row.key_state);
        end loop;
    end loop;

    foreach v_key in array p_keys loop
        v_place := v_place + 1;
        if v_key_states[v_place] is null or v_key_states[v_place] in ('?', 'n') then
            v_key_states[v_place] := case when v_key.gen is null or v_key_states[v_place] = 'n' then 'ended'
                                      when v_key.mode <> 't' then forebay._key_state(v_key)
                                      when v_key.free_at > v_now then 'waiting' else 'ended' end;
        end if;
    end loop;
    return v_key_states;
end
$$;
