-- Of some keys those that are paused, with the end of each pause, null for none.
create function forebay._paused_keys(p_queue text, p_sort text, p_keys text[], p_at timestamptz, out keys text[], out ends timestamptz[])
language sql stable
as $$
    select coalesce(array_agg(p.key order by p.key), '{}'), coalesce(array_agg(p.resume_at order by p.key), '{}')
    from forebay.key_pause p
    where p.queue = p_queue and p.sort = p_sort and p.key = any (p_keys)
      and coalesce(p.begins_at <= p_at, true) and coalesce(p.resume_at > p_at, true)
$$;


-- What a claim does about the paused ordering keys that it met, before it parks their jobs. The lock of the group's keys is held.
--
-- A job on its way (a retry, for example) that has come back becomes the first of the key's requeued jobs; returns the numbers of such
-- rows. A suspect does not: it returns to its own lane.
--
-- Invariant "a paused key is not forgotten": when the pause has an end, the key gets a recheck row at that time, unless something that was
-- there before makes a claim look at the key again.
create function forebay._hold_keys(
    p_group_id bigint, p_queue text, p_priority integer, p_audience bigint, p_keys text[], p_ends timestamptz[],
    p_rows forebay.log[], p_at timestamptz)
returns bigint[]
language plpgsql volatile
-- planner: arrays
as $$
declare
    v_key     record;
    v_private bigint;
    v_seqs    bigint[] := '{}';
begin
    for v_key in
        select s.*, p.ends, h.lane, h.seq,
               s.waiting_seqs <> '{}'
               or exists (select from forebay.parked i
                          where i.group_id = p_group_id and i.ordering_key = s.ordering_key and i.parked_no > s.taken_up_to) as has_waiting,
               exists (select from unnest(p_rows) r where r.ordering_key = s.ordering_key and r.kind = '') as is_recheck
        from forebay._key_states(p_group_id, p_keys) s
        join unnest(p_keys, p_ends) p (key, ends) on p.key = s.ordering_key
        left join lateral (select r.lane, r.seq from unnest(p_rows) r
                           where p_audience >= 0 and s.open = 0 and r.ordering_key = s.ordering_key and r.kind <> ''
                             and coalesce(r.job_id, r.seq) = s.head limit 1) h on true
    loop
        if v_key.seq is not null then
            v_seqs := v_seqs || v_key.seq;
            insert into forebay.key_run (
                group_id, ordering_key, no, since, taken_up_to, rest_lanes, rest_seqs, low_seq, high_seq)
            select p_group_id, v_key.ordering_key, v_key.no + 1, v_key.no + 1, v_key.taken_up_to, v_key.lane || v_key.waiting_lanes,
                   v_key.seq || v_key.waiting_seqs, min(u), max(u)
            from unnest(v_key.seq || v_key.waiting_seqs) u;
            -- A redriven job has its place now: its dead letter holds the key no longer.
            update forebay.dead_letter d set holds_key = false
            where pg_sequence_last_value('forebay.hold_seq') is not null
              and d.group_id = p_group_id and d.ordering_key = v_key.ordering_key and d.holds_key and d.redriven_as = v_key.head;
        end if;
        if v_key.ends is not null and (v_key.is_recheck or v_key.seq is not null or not v_key.has_waiting) then
            v_private := forebay._record_keyed_lane(p_queue, p_priority, p_group_id);
            -- One is enough, if it was not promoted before the clock was set back.
            if not exists (select from forebay.deferred d
                           where d.run_at = v_key.ends and d.lane = v_private and d.ordering_key = v_key.ordering_key and d.kind = ''
                             and d.run_at > coalesce((select p.run_at from forebay.promotion p order by p.no desc limit 1), '-infinity')) then
                insert into forebay.deferred (run_at, lane, enqueued_at, job_id, kind, args, ordering_key)
                values (v_key.ends, v_private, p_at, 0, '', '{}', v_key.ordering_key);
                perform forebay._announce_due(v_key.ends);
            end if;
        end if;
    end loop;
    return v_seqs;
end
$$;
