-- Uniqueness by intent: what a key means while another job of the same key waits or runs.
--
-- A key has generations, each with its job, appended and read newest first. Whether a generation still holds its key is
-- not written down anywhere: it is read off its job, which ends in one commit whatever ends it. So no end of a job has to
-- release anything, and no key can be left behind.
--
-- Invariant "one generation": of a key's jobs only the newest can ever start. See docs/design/unique.md.


create table forebay.unique_key (
    xid         xid8 not null default pg_current_xact_id(),           -- Before job_id, as in the log.
    queue       text collate "C" not null,
    intent      "char" not null check (intent in ('o', 'i', 'c', 'r', 'd', 't')),  -- once, idempotent, coalesce, replace, debounce, throttle
    key         text collate "C" not null,
    gen         bigint not null,
    job_id      bigint not null default nextval('forebay.log_seq'),
    lane        bigint not null,         -- the public lane the job was put in
    is_deferred boolean not null,        -- it had to wait for a time: its first row is not in the log under its own number
    taken_at    timestamptz not null,
    expires_at  timestamptz not null,    -- the job does not start from then on
    free_at     timestamptz,             -- throttle: when the period is over
    first_at    timestamptz,             -- debounce: when the first of the calls came that this job stands for
    payload     bytea,                   -- idempotent: hash of kind and arguments
    origin      bigint not null,         -- coalesce: the oldest generation that an open transaction may still have joined
    primary key (queue, intent, key, gen)
);
create index unique_key_by_job on forebay.unique_key (job_id) where intent = 'c';
create index unique_key_by_time on forebay.unique_key (taken_at);

comment on table forebay.unique_key is 'Unique keys: a row for each generation of a key, with its job.';


-- What became of one row of the log for a group: waiting, running, ended, or on (the job went on in a newer row).
--
-- The batch that disposed of the row is the first one whose cursor has passed it. It is sought from the newest batch
-- backwards, in steps that double, since it is mostly near; the oldest batches, where deleted ones may lie, are not read.
create function forebay._fate(p_group_id bigint, p_lane bigint, p_xid xid8, p_seq bigint) returns text
language plpgsql stable
as $$
declare
    v_hi     bigint;
    v_lo     bigint;
    v_try    bigint;
    v_step   bigint := 1;
    v_passed boolean;
    v_batch  record;
    v_code   "char";
begin
    if p_seq < forebay._archived_below() then
        return 'on';
    end if;
    select b.no,
           b.high_seq >= p_seq and forebay._is_consumed(p_xid, p_seq, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq)
    into v_hi, v_passed
    from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
    where b.group_id = p_group_id and b.lane = p_lane order by b.no desc limit 1;
    if v_passed is not true then
        return 'waiting';
    end if;
    v_lo := v_hi;
    loop
        v_try := case when v_lo = v_hi then v_hi - v_step else (v_lo + v_hi) / 2 end;
        v_passed := false;  -- Also where there is no batch of this number any more.
        select b.high_seq >= p_seq and forebay._is_consumed(p_xid, p_seq, b.snap_from, b.snap_to, s.lo, s.hi, b.pos_xid, b.pos_seq)
        into v_passed
        from forebay.batch b left join forebay.segment s on s.segment_id = b.pos_segment
        where b.group_id = p_group_id and b.lane = p_lane and b.no = v_try;
        if v_lo < v_hi then
            if v_passed then
                v_hi := v_try;
            else
                v_lo := v_try;
            end if;
        elsif v_passed then
            v_lo := v_try;
            v_hi := v_try;
            v_step := v_step * 2;
        else
            v_lo := v_try;
        end if;
        exit when v_hi = v_lo + 1;
    end loop;

    select b.lease_id, b.claim_no, array_position(b.seqs, p_seq) as place, array_position(b.skipped, p_seq) as skip, b.skipped_as
    into v_batch
    from forebay.batch b where b.group_id = p_group_id and b.lane = p_lane and b.no = v_hi;
    if v_batch.skip is not null then
        return case when v_batch.skipped_as[v_batch.skip] in ('c', 'e') then 'ended' else 'on' end;
    elsif v_batch.place is null then
        return 'on';
    end if;
    select coalesce(s.outcomes[array_position(s.offsets, v_batch.place::smallint)], 'd') into v_code
    from forebay.settlement s
    where s.lease_id = v_batch.lease_id and s.claim_no = v_batch.claim_no
      and (s.offsets is null or v_batch.place::smallint = any (s.offsets))
    limit 1;
    return case when v_code is null then 'running' when v_code in ('d', 'c', 'x') then 'ended' else 'on' end;
end
$$;


-- Where the job of a generation stands for one group, or for a queue that has none yet: waiting, running, ended; null when
-- the group does not read it.
--
-- A waiting job that was cancelled, replaced or has expired has ended: no claim will start it any more.
create function forebay._stage_in(p_key forebay.unique_key, p_group_id bigint, p_start_after pg_snapshot) returns text
language plpgsql stable
as $$
declare
    v_fate    text := 'on';
    v_mark    forebay.promotion;
    v_segment bigint;
    v_row     record;
begin
    if not p_key.is_deferred then
        if pg_visible_in_snapshot(p_key.xid, p_start_after) then
            return null;
        end if;
        v_fate := forebay._fate(p_group_id, p_key.lane, p_key.xid, p_key.job_id);
    end if;
    if v_fate = 'on' then
        select p.* into v_mark from forebay.promotion p order by p.no desc limit 1;
        if exists (
            select from forebay.deferred d
            join lateral (select l.audience from forebay.lane l where l.lane = d.lane limit 1) a on true
            where d.job_id = p_key.job_id and a.audience in (0, p_group_id, -p_group_id)
              and not (v_mark.no is not null and pg_visible_in_snapshot(d.xid, v_mark.snap)
                       and (d.run_at, d.deferred_id) <= (v_mark.run_at, v_mark.deferred_id))) then
            v_fate := 'waiting';
        else
            v_fate := 'ended';
            for v_segment in
                select s.segment_id from forebay.segment s
                where s.hi > p_key.job_id and s.removed_at is null
                  and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
                order by s.segment_id desc
            loop
                execute format(
                    'select l.lane, l.xid, l.seq, a.audience from forebay.log_%s l
                     join lateral (select i.audience from forebay.lane i where i.lane = l.lane limit 1) a on true
                     where l.job_id = $1 and a.audience in (0, $2, -$2)
                     order by l.seq desc limit 1', v_segment)
                    into v_row using p_key.job_id, p_group_id;
                if v_row.seq is not null then
                    if v_row.audience = 0 and pg_visible_in_snapshot(v_row.xid, p_start_after) then
                        return null;
                    end if;
                    v_fate := forebay._fate(p_group_id, v_row.lane, v_row.xid, v_row.seq);
                    exit;
                end if;
            end loop;
        end if;
    end if;
    if v_fate = 'waiting'
       and (p_key.expires_at <= forebay._now()
            or exists (select from forebay.tombstone t
                       where t.job_id = p_key.job_id and t.reason <> 'k' and (t.group_id is null or t.group_id = p_group_id))) then
        return 'ended';
    end if;
    return case v_fate when 'on' then 'ended' else v_fate end;
end
$$;


-- Where the job of a generation stands: waiting (for every group of its queue), ended (for every group), else running.
create function forebay._stage(p_key forebay.unique_key) returns text
language plpgsql stable
as $$
declare
    v_group   record;
    v_stage   text;
    v_waiting boolean := false;
    v_ended   boolean := false;
    v_any     boolean := false;
begin
    for v_group in
        select g.group_id, g.start_after from forebay.queue_group g where g.queue = p_key.queue order by g.group_id
    loop
        v_any := true;
        v_stage := forebay._stage_in(p_key, v_group.group_id, v_group.start_after);
        if v_stage = 'running' then
            return v_stage;
        end if;
        v_waiting := v_waiting or coalesce(v_stage = 'waiting', false);
        v_ended := v_ended or coalesce(v_stage = 'ended', false);
    end loop;
    if not v_any then
        return coalesce(forebay._stage_in(p_key, null, null), 'ended');
    end if;
    return case when not v_waiting then 'ended' when v_ended then 'running' else 'waiting' end;
end
$$;


-- What two groups say of one job, taken together: n not read, ? not known, else as forebay._stage().
create function forebay._both_stages(p_one text, p_other text) returns text
language sql immutable
as $$
    select case when p_one is null or p_one = 'n' then p_other
                when p_other in ('n', p_one) then p_one
                when p_one = '?' or p_other = '?' then '?'
                else 'running' end
$$;


-- Where the jobs of many generations stand, as forebay._stage() says it, in the order of the generations, of which some may
-- be null: ended. A throttle's is waiting until its period is over.
--
-- Of each lane with many of them, the batches of all are sought together, by their highest numbers, which only rise. A batch
-- that has the number has disposed of it, whichever way it was found; what it does not have is left to forebay._stage().
create function forebay._stages(p_keys forebay.unique_key[]) returns text[]
language plpgsql stable
as $$
declare
    v_now      constant timestamptz := forebay._now();
    v_archived constant bigint := forebay._archived_below();
    v_stages   text[] := array_fill(null::text, array[cardinality(p_keys)]);
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
              where not k.is_deferred and k.intent <> 't' group by 1, 2 having count(*) >= 8) l
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
                        when k.job_id < v_archived then '?'
                        when v_newest.high_seq >= k.job_id
                             and forebay._is_consumed(k.xid, k.job_id, v_newest.snap_from, v_newest.snap_to, v_newest.lo, v_newest.hi,
                                                      v_newest.pos_xid, v_newest.pos_seq) then null
                        when k.expires_at <= v_now
                             or exists (select from forebay.tombstone t
                                        where t.job_id = k.job_id and t.reason <> 'k'
                                          and (t.group_id is null or t.group_id = v_lane.group_id)) then 'ended'
                        else 'waiting' end as stage
            from unnest(p_keys) with ordinality k
            where k.queue = v_lane.queue and k.lane = v_lane.lane and not k.is_deferred and k.intent <> 't'
        loop
            if v_row.stage is null then
                v_places := v_places || v_row.place;
                v_seqs := v_seqs || v_row.job_id;
            else
                v_stages[v_row.place] := forebay._both_stages(v_stages[v_row.place], v_row.stage);
            end if;
        end loop;
        continue when cardinality(v_places) = 0;

        -- A batch that is before them all, sought from the newest one backwards; then some between, evenly.
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
                            select case when coalesce(s.outcomes[array_position(s.offsets, f.at)], 'd') in ('d', 'c', 'x') then 'ended' else '?' end
                            from forebay.settlement s
                            where s.lease_id = b.lease_id and s.claim_no = b.claim_no and f.at = any (s.offsets) limit 1), 'running')
                        when b.skipped_as[array_position(b.skipped, q.seq)] in ('c', 'e') then 'ended'
                        else '?' end as stage
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
            v_stages[v_row.place] := forebay._both_stages(v_stages[v_row.place], v_row.stage);
        end loop;
    end loop;

    foreach v_key in array p_keys loop
        v_place := v_place + 1;
        if v_stages[v_place] is null or v_stages[v_place] in ('?', 'n') then
            v_stages[v_place] := case when v_key.gen is null or v_stages[v_place] = 'n' then 'ended'
                                      when v_key.intent <> 't' then forebay._stage(v_key)
                                      when v_key.free_at > v_now then 'waiting' else 'ended' end;
        end if;
    end loop;
    return v_stages;
end
$$;


-- The intent that a unique_as names, or null. An expression, since it is asked for each job of a bulk enqueue.
create function forebay._intent(p_unique_as jsonb) returns text
language sql immutable
as $$
    select case when jsonb_typeof(p_unique_as) = 'object'
                     and (p_unique_as ? 'once')::integer + (p_unique_as ? 'idempotent')::integer + (p_unique_as ? 'coalesce')::integer
                         + (p_unique_as ? 'replace')::integer + (p_unique_as ? 'debounce')::integer + (p_unique_as ? 'throttle')::integer = 1
                then case when p_unique_as ? 'once' then 'once' when p_unique_as ? 'idempotent' then 'idempotent'
                          when p_unique_as ? 'coalesce' then 'coalesce' when p_unique_as ? 'replace' then 'replace'
                          when p_unique_as ? 'debounce' then 'debounce' else 'throttle' end end
$$;


-- A positive number of seconds in a unique_as, at most ten years; null when it is anything else.
create function forebay._unique_seconds(p_unique_as jsonb, p_name text) returns double precision
language plpgsql immutable
as $$
begin
    if jsonb_typeof(p_unique_as -> p_name) = 'number' and (p_unique_as ->> p_name)::numeric between 0.001 and 315576000 then
        return (p_unique_as ->> p_name)::double precision;
    end if;
    return null;
end
$$;


-- What is wrong with a unique_as, or null. One line, lower case, with the value.
create function forebay._unique_problem(p_unique_as jsonb, p_delay interval, p_run_at timestamptz, p_expires_at timestamptz) returns text
language plpgsql stable
as $$
declare
    v_intent constant text := forebay._intent(p_unique_as);
    v_known  constant text[] := array['on_busy'] || v_intent
        || case v_intent when 'debounce' then array['wait', 'max_wait'] when 'throttle' then array['period'] else '{}' end;
    v_key    constant text := p_unique_as ->> v_intent;
begin
    if v_intent is null then
        return format('unique_as %s must be an object with one of once, idempotent, coalesce, replace, debounce and throttle',
                      left(p_unique_as::text, 80));
    elsif jsonb_typeof(p_unique_as -> v_intent) <> 'string' or length(v_key) not between 1 and 200 or v_key ~ '[\x01-\x1f\x7f]' then
        return format('unique key %s must be text of 1 to 200 characters, none of them a control character',
                      left((p_unique_as -> v_intent)::text, 40));
    elsif (p_unique_as - v_known) <> '{}' then
        return format('unique_as has the unknown entry %s', (select quote_literal(left(k, 40)) from jsonb_object_keys(p_unique_as - v_known) k limit 1));
    elsif p_unique_as ? 'on_busy' and ((p_unique_as ->> 'on_busy') in ('wait', 'raise')) is not true then
        return format('on_busy %s is neither wait nor raise', left((p_unique_as -> 'on_busy')::text, 40));
    elsif v_intent = 'throttle' and forebay._unique_seconds(p_unique_as, 'period') is null then
        return format('period %s is not a number of seconds within 0.001 and ten years', coalesce(left((p_unique_as -> 'period')::text, 40), 'null'));
    elsif v_intent = 'debounce' then
        if forebay._unique_seconds(p_unique_as, 'wait') is null then
            return format('wait %s is not a number of seconds within 0.001 and ten years', coalesce(left((p_unique_as -> 'wait')::text, 40), 'null'));
        elsif p_unique_as ? 'max_wait' and (forebay._unique_seconds(p_unique_as, 'max_wait') >= forebay._unique_seconds(p_unique_as, 'wait')) is not true then
            return format('max_wait %s is not a number of seconds from wait to ten years', left((p_unique_as -> 'max_wait')::text, 40));
        elsif p_delay is not null or p_run_at is not null then
            return 'debounce sets the time itself: no delay or run_at beside it';
        elsif p_expires_at <= forebay._now() + make_interval(secs => forebay._unique_seconds(p_unique_as, 'wait')) then
            return format('expires_at %s is not after the end of the wait', p_expires_at);
        end if;
    end if;
    return null;
end
$$;


-- Enqueue a checked job that has a unique key.
--
-- Of producers that would make the same generation one does; the others wait for its commit or rollback, in the insert
-- or, with on_busy raise, not at all. A generation is made holding its predecessor's row, so that upkeep, which deletes
-- old generations, cannot let the numbering begin anew between the look and the insert.
--
-- Who joins a waiting job (coalesce) holds its row until the own transaction ends, and looks a second time whether it
-- still waits: the claim that starts the job sees that somebody holds it. See forebay._follow_up().
create function forebay._enqueue_unique(
    p_job forebay._job_input, p_start timestamptz, p_unique_as jsonb, p_where text,
    out job_id bigint, out is_new boolean, out replaced bigint)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_now     constant timestamptz := forebay._now();
    v_intent  constant text := forebay._intent(p_unique_as);
    v_code    constant "char" := left(v_intent, 1);
    v_key     constant text := p_unique_as ->> v_intent;
    v_raise   constant boolean := coalesce(p_unique_as ->> 'on_busy' = 'raise', false);
    v_payload bytea;
    v_start   timestamptz := p_start;
    v_first   timestamptz;
    v_last    forebay.unique_key;
    v_stage   text;
    v_lane    bigint;
begin
    is_new := false;
    if v_intent = 'idempotent' then
        v_payload := sha256(convert_to(p_job.kind || ' ' || p_job.args::text, 'UTF8'));
    end if;
    v_lane := case when p_job.limit_key is null then forebay._pick_lane(p_job.queue, p_job.priority)
                   else forebay._note_limited_lane(p_job.queue, p_job.priority, 0, p_job.limit_key) end;
    loop
        replaced := null;
        v_stage := 'ended';
        select u.* into v_last from forebay.unique_key u
        where u.queue = p_job.queue and u.intent = v_code and u.key = v_key
        order by u.gen desc limit 1;
        if v_last.gen is not null then
            if v_intent = 'throttle' then
                v_stage := case when v_last.free_at > v_now then 'waiting' else 'ended' end;
            else
                v_stage := forebay._stage(v_last);
            end if;
            job_id := v_last.job_id;
            if v_intent in ('once', 'idempotent', 'throttle') and v_stage <> 'ended' then
                if v_payload <> v_last.payload then
                    perform forebay._raise_differs(v_key, v_last.job_id, p_where);
                end if;
                return;
            end if;
            if not forebay._hold_key(v_last, v_intent = 'coalesce' and v_stage = 'waiting', v_raise, p_where) then
                continue;
            end if;
            if v_intent = 'coalesce' and v_stage = 'waiting' then
                if forebay._stage(v_last) = 'waiting' then
                    return;
                end if;
                continue;
            end if;
        end if;

        if v_intent = 'debounce' then
            v_first := case when v_stage = 'waiting' then v_last.first_at else v_now end;
            v_start := least(v_now + make_interval(secs => forebay._unique_seconds(p_unique_as, 'wait')),
                             v_first + make_interval(secs => forebay._unique_seconds(p_unique_as, 'max_wait')));
        end if;
        job_id := forebay._make_generation(
            p_job.queue, v_code, v_key, v_last, v_raise, p_where, v_lane, v_start > v_now,
            coalesce(p_job.expires_at, greatest(v_start, v_now) + interval '30 days'),
            case when v_intent = 'throttle' then v_now + make_interval(secs => forebay._unique_seconds(p_unique_as, 'period')) end,
            v_first, v_payload, case when v_stage = 'running' then v_last.gen end);
        exit when job_id is not null;
    end loop;
    is_new := true;
    if v_stage <> 'ended' then
        -- Whatever becomes of the predecessor, it does not start again.
        insert into forebay.tombstone (job_id, reason, noted_at) values (v_last.job_id, 'r', v_now);
        if v_stage = 'waiting' then
            replaced := v_last.job_id;
        end if;
    end if;
    if v_intent = 'coalesce' then
        insert into forebay.tombstone (job_id, reason, noted_at) values (job_id, 'k', v_now);
    end if;

    if v_start > v_now then
        insert into forebay.deferred (
            run_at, lane, enqueued_at, job_id, expires_at, max_attempts, kind, args, tag, correlation_id, headers, unique_key)
        values (
            v_start, v_lane, v_now, job_id, coalesce(p_job.expires_at, v_start + interval '30 days'), p_job.max_attempts,
            p_job.kind, p_job.args, p_job.tag, p_job.correlation_id, p_job.headers, v_key);
    else
        if pg_sequence_last_value('forebay.limit_seq') is not null then
            perform forebay._require_room(p_job.queue, 1);
        end if;
        -- Its number was drawn after its xid, with the generation.
        insert into forebay.log (
            seq, lane, enqueued_at, expires_at, max_attempts, kind, args, tag, correlation_id, headers, unique_key)
        values (
            job_id, v_lane, v_now, p_job.expires_at, p_job.max_attempts, p_job.kind, p_job.args, p_job.tag,
            p_job.correlation_id, p_job.headers, v_key);
        perform forebay._ring(p_job.queue);
    end if;
end
$$;


-- Hold the row of a generation until the transaction ends; false when upkeep has deleted it.
--
-- Parameters: p_join, hold it so that the claim that starts the job takes notice; p_where, before the message of an error.
-- Errors: JQ004 with p_raise, when it cannot be held at once.
create function forebay._hold_key(p_key forebay.unique_key, p_join boolean, p_raise boolean, p_where text) returns boolean
language plpgsql volatile
as $$
declare
    v_timeout constant text := current_setting('lock_timeout');
    v_held    boolean;
begin
    if p_raise then
        begin
            perform set_config('lock_timeout', '10ms', true);
            v_held := forebay._hold_key(p_key, p_join, false, p_where);
            perform set_config('lock_timeout', v_timeout, true);
            return v_held;
        exception when lock_not_available then
            perform forebay._raise_busy(p_key.key, p_where);
        end;
    elsif p_join then
        perform from forebay.unique_key u
        where u.queue = p_key.queue and u.intent = p_key.intent and u.key = p_key.key and u.gen = p_key.gen for share;
    else
        perform from forebay.unique_key u
        where u.queue = p_key.queue and u.intent = p_key.intent and u.key = p_key.key and u.gen = p_key.gen for key share;
    end if;
    return found;
end
$$;


-- Errors: JQ005.
create function forebay._raise_differs(p_key text, p_job_id bigint, p_where text) returns void
language plpgsql stable
as $$
begin
    raise exception using
        errcode = 'JQ005',
        message = format('%skey %s belongs to job %s, whose kind or arguments differ', p_where, quote_literal(left(p_key, 80)), p_job_id),
        detail = jsonb_strip_nulls(jsonb_build_object('index', substring(p_where, '\d+')::bigint, 'job_id', p_job_id)),
        hint = 'An idempotency key stands for one request: use another key, or wait until that job has ended.';
end
$$;


-- Errors: JQ004.
create function forebay._raise_busy(p_key text, p_where text) returns void
language plpgsql stable
as $$
begin
    raise exception using
        errcode = 'JQ004',
        message = format('%skey %s is being taken by another open transaction', p_where, quote_literal(left(p_key, 80))),
        detail = jsonb_strip_nulls(jsonb_build_object('index', substring(p_where, '\d+')::bigint, 'key', p_key)),
        hint = 'Try again when that transaction has ended, or let the enqueue wait for it: on_busy wait.';
end
$$;


-- Append a generation; returns its job's number, or null when another transaction has made it meanwhile.
--
-- Errors: JQ004 with p_raise, when another open transaction is making it; 40001 in a REPEATABLE READ transaction when another
--   one has made it.
create function forebay._make_generation(
    p_queue text, p_intent "char", p_key text, p_last forebay.unique_key, p_raise boolean, p_where text, p_lane bigint, p_is_deferred boolean,
    p_expires_at timestamptz, p_free_at timestamptz, p_first_at timestamptz, p_payload bytea, p_origin bigint)
returns bigint
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_timeout constant text := current_setting('lock_timeout');
    v_gen     constant bigint := coalesce(p_last.gen, 0) + 1;
    v_job_id  bigint;
begin
    if not p_raise then
        insert into forebay.unique_key (
            queue, intent, key, gen, lane, is_deferred, taken_at, expires_at, free_at, first_at, payload, origin)
        values (
            p_queue, p_intent, p_key, v_gen, p_lane, coalesce(p_is_deferred, false), forebay._now(), p_expires_at, p_free_at,
            p_first_at, p_payload, coalesce(p_origin, v_gen))
        on conflict do nothing
        returning job_id into v_job_id;
        return v_job_id;
    end if;
    begin
        perform set_config('lock_timeout', '10ms', true);
        v_job_id := forebay._make_generation(
            p_queue, p_intent, p_key, p_last, false, p_where, p_lane, p_is_deferred, p_expires_at, p_free_at, p_first_at, p_payload, p_origin);
        perform set_config('lock_timeout', v_timeout, true);
        return v_job_id;
    exception when lock_not_available then
        perform forebay._raise_busy(p_key, p_where);
    end;
end
$$;


-- Follow up the jobs that a claim hands out and that an open transaction has joined (coalesce): whatever that transaction
-- wrote, these runs do not see, so that each gets a successor, at its first start in any group.
--
-- The successor waits a little, for that transaction to end; if it has not, the successor is followed up in turn, later
-- each time, up to ten seconds. The claim itself waits for nobody.
--
-- Locks: advisory key 7; the rows of the generations, without waiting.
create function forebay._follow_up(p_rows forebay.log[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_keys   forebay.unique_key[];
    v_key    forebay.unique_key;
    v_row    forebay.log;
    v_free   bigint[];
    v_open   bigint;
    v_job_id bigint;
begin
    v_keys := array(
        select k.u from unnest(p_rows) r,
             lateral (select u, u.queue, u.key from forebay.unique_key u
                      where u.job_id = coalesce(r.job_id, r.seq) and u.intent = 'c'
                      offset 0) k  -- An index probe for each, whatever the planner thinks of the table.
        where r.unique_key is not null
        order by k.queue, k.key);
    if cardinality(v_keys) = 0 then
        return;
    end if;
    perform pg_advisory_xact_lock(forebay._lock_class(), 7);
    foreach v_key in array v_keys loop
        -- A key that has a newer generation, or was started by another group, has been followed up.
        continue when exists (select from forebay.unique_key u
                              where u.queue = v_key.queue and u.intent = 'c' and u.key = v_key.key and u.gen > v_key.gen);
        continue when forebay._stage(v_key) <> 'waiting';
        v_free := array(
            select u.gen from forebay.unique_key u
            where u.queue = v_key.queue and u.intent = 'c' and u.key = v_key.key and u.gen between v_key.origin and v_key.gen
            for update skip locked);
        select min(u.gen) into v_open from forebay.unique_key u
        where u.queue = v_key.queue and u.intent = 'c' and u.key = v_key.key and u.gen between v_key.origin and v_key.gen
          and u.gen <> all (v_free);
        continue when v_open is null;
        begin
            v_job_id := forebay._make_generation(
                v_key.queue, 'c', v_key.key, v_key, true, '', v_key.lane, true, v_key.expires_at, null, null, null, v_open);
        exception when sqlstate 'JQ004' then
            continue;  -- An open transaction is making the successor.
        end;
        continue when v_job_id is null;
        insert into forebay.tombstone (job_id, reason, noted_at)
        values (v_key.job_id, 'r', forebay._now()), (v_job_id, 'k', forebay._now());
        select r.* into v_row from unnest(p_rows) r where coalesce(r.job_id, r.seq) = v_key.job_id;
        v_row.job_id := v_job_id;
        v_row.enqueued_at := forebay._now();
        v_row.expires_at := v_key.expires_at;
        perform forebay._go_on(
            v_row, v_key.lane, 0, 0,
            forebay._now() + make_interval(secs => least(10, 0.25 * 2 ^ least(v_key.gen - v_open, 6))));
    end loop;
end
$$;


-- Delete generations that nobody needs: older than a day, and superseded or ended; returns how many.
--
-- The newest of a key is deleted only when no transaction holds it: see forebay._enqueue_unique().
create function forebay._trim_keys(p_most integer) returns bigint
language plpgsql volatile
as $$
declare
    v_before constant timestamptz := forebay._now() - interval '1 day';
    v_oldest timestamptz;
    v_key    forebay.unique_key;
    v_count  bigint := 0;
begin
    select u.taken_at into v_oldest from forebay.unique_key u order by u.taken_at limit 1;
    for v_key in
        select u.* from forebay.unique_key u
        where u.taken_at < v_before
          -- Every other time from anywhere on, so that keys which are held for long do not hide the others.
          and u.taken_at >= case when random() < 0.5 then v_oldest else v_oldest + random() * (v_before - v_oldest) end
        order by u.taken_at limit least(p_most, 2000)
        for update skip locked
    loop
        if exists (select from forebay.unique_key u
                   where u.queue = v_key.queue and u.intent = v_key.intent and u.key = v_key.key and u.gen > v_key.gen) then
            continue when exists (
                select from forebay.unique_key u
                where u.queue = v_key.queue and u.intent = v_key.intent and u.key = v_key.key
                  and u.gen > v_key.gen and u.origin <= v_key.gen);
        else
            continue when v_key.free_at > forebay._now() or forebay._stage(v_key) <> 'ended';
        end if;
        delete from forebay.unique_key u
        where u.queue = v_key.queue and u.intent = v_key.intent and u.key = v_key.key and u.gen = v_key.gen;
        v_count := v_count + 1;
    end loop;
    return v_count;
end
$$;


-- Enqueue one job under a unique key; returns its id and whether it is new.
--
-- Invariants "one generation", "commit is the gate".
--
-- Parameters: unique_as, one of
--     {"once": key}                                nothing new while a job of the key waits or runs
--     {"idempotent": key}                          the same, and it must have the same kind and arguments
--     {"coalesce": key}                            nothing new while one waits
--     {"replace": key}                             a waiting one is replaced
--     {"debounce": key, "wait": s, "max_wait": s}  the same; starts s after the last call, at most max_wait after the first
--     {"throttle": key, "period": s}               nothing new within s of the last new one
--   with "on_busy": "raise" to be refused instead of waiting when another open transaction is taking the key. A key is a
--   text of 1 to 200 characters and belongs to its queue and intent. The others as for forebay.enqueue.
-- Returns: job_id, of the new job or the existing one; is_new; replaced, the waiting job whose place the new one took.
-- Errors: JQ001 a bad option, JQ002 and JQ003 args too large or too deep, JQ004 the key is busy (on_busy raise), JQ005 an idempotency
--   key with another kind or other arguments; 40001 in a REPEATABLE READ transaction that does not see the key's newest job.
-- Locks: the key's newest row, until the transaction ends; waits for another open transaction that is taking the same key.
create function forebay.enqueue_unique(
    kind text, args jsonb, unique_as jsonb, queue text default 'default', priority integer default 100,
    delay interval default null, run_at timestamptz default null, expires_at timestamptz default null,
    max_attempts integer default null, tag text default null, correlation_id text default null,
    headers jsonb default null, ordering_key text default null, limit_key text default null, out job_id bigint, out is_new boolean, out replaced bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_problem text;
    v_made    record;
begin
    v_problem := coalesce(
        forebay._job_problem(
            enqueue_unique.kind, enqueue_unique.args, enqueue_unique.queue, enqueue_unique.priority, enqueue_unique.delay,
            enqueue_unique.run_at, enqueue_unique.expires_at, enqueue_unique.max_attempts, enqueue_unique.tag,
            enqueue_unique.correlation_id, enqueue_unique.headers, enqueue_unique.ordering_key, enqueue_unique.limit_key),
        case when enqueue_unique.ordering_key is not null then 'ordering_key and unique_as exclude each other' end,
        forebay._unique_problem(enqueue_unique.unique_as, enqueue_unique.delay, enqueue_unique.run_at, enqueue_unique.expires_at));
    if v_problem is not null then
        raise exception using errcode = 'JQ001', message = v_problem,
            hint = 'Nothing was enqueued. See the function forebay.enqueue_unique in the reference.';
    end if;
    perform forebay._check_args(enqueue_unique.args, null);
    select u.* into v_made
    from forebay._enqueue_unique(
        row(enqueue_unique.kind, enqueue_unique.args, enqueue_unique.queue, enqueue_unique.priority, null, null,
            enqueue_unique.expires_at, enqueue_unique.max_attempts, enqueue_unique.tag, enqueue_unique.correlation_id,
            enqueue_unique.headers, null, enqueue_unique.limit_key)::forebay._job_input,
        coalesce(enqueue_unique.run_at, forebay._now() + enqueue_unique.delay), enqueue_unique.unique_as, '') u;
    job_id := v_made.job_id;
    is_new := v_made.is_new;
    replaced := v_made.replaced;
end
$$;


-- One job with a unique key of a bulk enqueue; first_nr is the first job of its key, and differs what an idempotency key refuses.
-- No name is one of unique_key's.
create type forebay._key_input as (
    nr bigint, first_nr bigint, differs boolean, its_queue text, code "char", word text, unique_as jsonb, its_lane bigint,
    start timestamptz, ends timestamptz, digest bytea);

-- What became of it: the job that stands for it, and of a new one when it was enqueued and when it starts; null: at once.
create type forebay._key_taken as (stands_for bigint, is_new boolean, since timestamptz, starts_at timestamptz);


-- What a call has to do about a key: keep the job there is, join it, or make a generation.
create function forebay._key_duty(p_code "char", p_stage text) returns text
language sql immutable
as $$
    select case when p_stage <> 'ended' and p_code in ('o', 'i', 't') then 'keep'
                when p_stage = 'waiting' and p_code = 'c' then 'join'
                else 'make' end
$$;


-- The jobs of a bulk enqueue that have a unique key, in the order in which keys are taken.
--
-- Errors: JQ001 naming the first bad job by its index.
create function forebay._key_inputs(p_jobs forebay._job_input[], p_unique_as jsonb[]) returns forebay._key_input[]
language plpgsql volatile
as $$
declare
    v_now    constant timestamptz := forebay._now();
    v_spreads constant jsonb := forebay._spreads(array(select distinct j.queue from unnest(p_jobs) j));
    v_row    record;
begin
    for v_row in
        select u.ordinality - 1 as index,
               forebay._unique_problem(u.unique_as, make_interval(secs => u.delay), u.run_at, u.expires_at) as problem
        from (select j.delay, j.run_at, j.expires_at, j.unnest as unique_as, forebay._intent(j.unnest) as intent, j.ordinality
              from unnest(p_jobs, p_unique_as) with ordinality j
              where j.unnest is not null offset 0) u
        where (u.intent in ('once', 'idempotent', 'coalesce', 'replace') and jsonb_typeof(u.unique_as -> u.intent) = 'string'
               and length(u.unique_as ->> u.intent) between 1 and 200 and u.unique_as ->> u.intent !~ '[\x01-\x1f\x7f]'
               and u.unique_as - u.intent = '{}') is not true
        order by u.ordinality
    loop
        if v_row.problem is not null then
            raise exception using errcode = 'JQ001', message = format('job %s: %s', v_row.index, v_row.problem),
                detail = jsonb_build_object('index', v_row.index),
                hint = 'Nothing was enqueued: a bulk call is all or none.';
        end if;
    end loop;
    for v_row in
        select distinct j.queue, j.priority, j.limit_key from unnest(p_jobs, p_unique_as) j where j.unnest is not null
    loop
        if v_row.limit_key is null then
            perform forebay._note_lanes(v_row.queue, v_row.priority, v_spreads);
        else
            perform forebay._note_limited_lane(v_row.queue, v_row.priority, 0, v_row.limit_key);
        end if;
    end loop;
    return array(
        select row(u.nr, first_value(u.nr) over same, u.digest <> first_value(u.digest) over same, u.queue, left(u.intent, 1)::"char", u.word,
                   u.unique_as, u.lane, u.start, u.expires_at, u.digest)::forebay._key_input
        from (select j.ordinality as nr, j.queue, j.intent, j.unique_as ->> j.intent as word, j.unique_as, j.expires_at,
                     case when j.limit_key is not null then forebay._limited_lane_id(j.queue, j.priority, 0, j.limit_key)
                          else forebay._dealt_lane(j.queue, j.priority, j.ordinality, v_spreads) end as lane,
                     coalesce(j.run_at, v_now + make_interval(secs => j.delay)) as start,
                     case when j.intent = 'idempotent' then sha256(convert_to(j.kind || ' ' || j.args::text, 'UTF8')) end as digest
              from (select i.*, i.unnest as unique_as, forebay._intent(i.unnest) as intent from unnest(p_jobs, p_unique_as) with ordinality i
                    where i.unnest is not null offset 0) j) u
        window same as (partition by u.queue collate "C", u.intent collate "C", u.word collate "C" order by u.nr)
        order by u.queue collate "C", u.intent collate "C", u.word collate "C", u.nr);
end
$$;


-- Append generations, one after the other, up to the first one that another transaction has made meanwhile, or to the moment
-- until which the look at their keys is good; returns their jobs' numbers. None is made after one that was not: what a call has taken
-- is always a beginning of its keys. The first one is tried whatever the time.
--
-- How many were made stands in a register, forebay.taken, which each row that is written moves on; a row is taken up only when all
-- before it were. If the server did not work row by row, it would make fewer, and none out of turn.
create function forebay._make_generations(p_keys forebay.unique_key[], p_until timestamptz) returns bigint[]
language plpgsql volatile
as $$
declare
    v_job_ids bigint[];
begin
    perform set_config('forebay.taken', '0', true);
    with made as (
        insert into forebay.unique_key (
            queue, intent, key, gen, lane, is_deferred, taken_at, expires_at, free_at, first_at, payload, origin)
        select k.queue, k.intent, k.key, k.gen, k.lane, k.is_deferred, k.taken_at, k.expires_at, k.free_at, k.first_at, k.payload, k.origin
        from unnest(p_keys) with ordinality k
        where k.ordinality - 1 = current_setting('forebay.taken')::bigint and (k.ordinality = 1 or clock_timestamp() < p_until)
        on conflict do nothing
        returning job_id, set_config('forebay.taken', (current_setting('forebay.taken')::bigint + 1)::text, true))
    select coalesce(array_agg(m.job_id), '{}') into v_job_ids from made m;
    return v_job_ids;
end
$$;


-- Do for many different keys at once what forebay._enqueue_unique() does for one: look, hold, look again, append. Returns what became
-- of the first of them, up to one for which another transaction was quicker, or which was not taken within a quarter of a second after the
-- look: one before it had to wait, and the others are not what they were. New jobs are not written yet.
--
-- Errors: JQ005 naming the job by its index.
create function forebay._take_keys(p_items forebay._key_input[]) returns forebay._key_taken[]
language plpgsql volatile
set enable_bitmapscan = off
as $$
declare
    v_now    timestamptz;
    v_until  timestamptz;
    v_lasts  forebay.unique_key[];
    v_stages text[];
    v_later  text[];
    v_taken  forebay._key_taken[];
    v_cut    bigint;
    v_make   record;
    v_made   bigint[];
    v_row    record;
begin
    v_lasts := array(
        select k.last from unnest(p_items) with ordinality i
        left join lateral (select u as last from forebay.unique_key u
                           where u.queue = i.its_queue and u.intent = i.code and u.key = i.word
                           order by u.gen desc limit 1) k on true
        order by i.ordinality);
    v_stages := forebay._stages(v_lasts);
    v_now := forebay._now();  -- Not before the look: a period counts from the job that it was over for.
    v_until := clock_timestamp() + interval '250 ms';
    for v_row in
        select k.nr, k.word, k.job_id from unnest(p_items, v_lasts, v_stages) k where k.code = 'i' and k.unnest <> 'ended' and k.digest <> k.payload
    loop
        perform forebay._raise_differs(v_row.word, v_row.job_id, format('job %s: ', v_row.nr - 1));
    end loop;

    -- Hold the predecessors, for upkeep to leave them.
    select coalesce(min(k.ordinality), cardinality(p_items) + 1) into v_cut
    from (select i.* from unnest(p_items, v_lasts, v_stages) with ordinality i
          where i.gen is not null and forebay._key_duty(i.code, i.unnest) = 'make' offset 0) k
    left join lateral (select true as is_held from forebay.unique_key u
                       where u.queue = k.queue and u.intent = k.intent and u.key = k.key and u.gen = k.gen for key share) h on true
    where h.is_held is null;
    -- Join, for the claim to take notice, and look again.
    if exists (select from unnest(p_items, v_stages) i where forebay._key_duty(i.code, i.unnest) = 'join') then
        select least(v_cut, min(k.ordinality)) into v_cut
        from (select i.* from unnest(p_items, v_lasts, v_stages) with ordinality i
              where forebay._key_duty(i.code, i.unnest) = 'join' offset 0) k
        left join lateral (select true as is_held from forebay.unique_key u
                           where u.queue = k.queue and u.intent = k.intent and u.key = k.key and u.gen = k.gen for share) h on true
        where h.is_held is null;
        v_later := forebay._stages(v_lasts);
        select least(v_cut, min(s.nr)) into v_cut
        from unnest(array(select forebay._key_duty(i.code, i.unnest) from unnest(p_items, v_stages) i), v_later)
             with ordinality s (duty, later, nr)
        where s.duty = 'join' and s.later <> 'waiting';
    end if;

    v_taken := array(select row(k.job_id, false, null, null)::forebay._key_taken from unnest(v_lasts) with ordinality k order by k.ordinality);
    select coalesce(array_agg(m.ordinality), '{}') as places, array_agg(m.start) as starts,
           array_agg(case when m.stage <> 'ended' then m.job_id end) as gone,
           array_agg(row(null, m.its_queue, m.code, m.word, m.next, null, m.its_lane, coalesce(m.start > v_now, false), v_now,
                         coalesce(m.ends, greatest(m.start, v_now) + interval '30 days'),
                         case when m.code = 't' then v_now + make_interval(secs => forebay._unique_seconds(m.unique_as, 'period')) end,
                         m.first, m.digest, case when m.stage = 'running' then m.gen else m.next end)::forebay.unique_key) as keys
    into v_make
    from (select k.ordinality, k.its_queue, k.code, k.word, k.unique_as, k.its_lane, k.ends, k.digest, k.gen, k.job_id, k.stage, k.first,
                 coalesce(k.gen, 0) + 1 as next,
                 case when k.code <> 'd' then k.start
                      else least(v_now + make_interval(secs => forebay._unique_seconds(k.unique_as, 'wait')),
                                 k.first + make_interval(secs => forebay._unique_seconds(k.unique_as, 'max_wait'))) end as start
          from (select i.*, i.unnest as stage,
                       case when i.code <> 'd' then null when i.unnest = 'waiting' then i.first_at else v_now end as first
                from unnest(p_items, v_lasts, v_stages) with ordinality i) k
          where k.ordinality < v_cut and forebay._key_duty(k.code, k.stage) = 'make'
          order by k.ordinality) m;
    if cardinality(v_make.places) > 0 then
        v_made := forebay._make_generations(v_make.keys, v_until);
        v_cut := coalesce(v_make.places[cardinality(v_made) + 1], v_cut);
        if clock_timestamp() >= v_until and cardinality(v_made) > 0 then
            v_cut := v_make.places[cardinality(v_made)] + 1;  -- The last one waited: those after it, also those that were not to be made.
        end if;
        for v_row in select m.* from unnest(v_make.places, v_made, v_make.starts) m (place, job_id, start) where m.job_id is not null loop
            v_taken[v_row.place] := row(v_row.job_id, true, v_now, v_row.start)::forebay._key_taken;
        end loop;
        insert into forebay.tombstone (job_id, reason, noted_at)
        -- Whatever becomes of the predecessors, they do not start again.
        select g.job_id, 'r'::"char", v_now from unnest(v_make.gone, v_made) g (job_id, made) where g.made is not null and g.job_id is not null
        union all
        select k.unnest, 'k', v_now from unnest(v_make.keys, v_made) k where k.unnest is not null and k.intent = 'c';
    end if;
    return v_taken[1 : v_cut - 1];
end
$$;


-- Write checked jobs of which some have a unique key; returns their ids in input order. Keys are taken in their order, so
-- that two calls of the same keys cannot wait for each other.
--
-- A key at which another transaction was quicker is taken by itself, and those after it, of which nothing was taken yet, are looked
-- at anew, at first a few.
--
-- Errors: JQ001, JQ004 and JQ005 naming the job by its index.
create function forebay._enqueue_mixed(p_jobs forebay._job_input[], p_unique_as jsonb[]) returns bigint[]
language plpgsql volatile
as $$
declare
    v_ids    bigint[] := array_fill(null::bigint, array[cardinality(p_jobs)]);
    v_items  forebay._key_input[] := forebay._key_inputs(p_jobs, p_unique_as);
    v_first  forebay._key_input[] := array(select i from unnest(v_items) i where i.nr = i.first_nr);
    v_item   forebay._key_input;
    v_taken  forebay._key_taken[] := '{}';
    v_part   forebay._key_taken[];
    v_most   integer;
    v_row    record;
begin
    -- Whoever will not wait asks for each key by itself.
    v_most := case when exists (select from unnest(v_items) i where i.unique_as ->> 'on_busy' = 'raise') then 0 else 1000 end;
    while cardinality(v_taken) < cardinality(v_first) loop
        v_part := case when v_most > 0 then forebay._take_keys(v_first[cardinality(v_taken) + 1 : cardinality(v_taken) + v_most]) else '{}' end;
        v_taken := v_taken || v_part;
        if cardinality(v_part) < v_most and cardinality(v_taken) < cardinality(v_first) or v_most = 0 then
            v_item := v_first[cardinality(v_taken) + 1];
            v_taken := v_taken || row((forebay._enqueue_unique(
                p_jobs[v_item.nr], v_item.start, v_item.unique_as, format('job %s: ', v_item.nr - 1))).job_id, false, null, null)::forebay._key_taken;
            v_most := least(v_most, 8);
        end if;
        v_most := least(v_most * 4, 1000);
    end loop;

    for v_row in
        select i.its_queue as queue, count(*) as more from unnest(v_first, v_taken) i
        where i.is_new and (i.starts_at > i.since) is not true group by 1
    loop
        if pg_sequence_last_value('forebay.limit_seq') is not null then
            perform forebay._require_room(v_row.queue, v_row.more);
        end if;
        perform forebay._ring(v_row.queue);
    end loop;
    -- Their numbers were drawn after their xid, with the generations.
    insert into forebay.log (
        seq, lane, enqueued_at, expires_at, max_attempts, kind, args, tag, correlation_id, headers, unique_key)
    select i.stands_for, i.its_lane, i.since, i.ends, j.max_attempts, j.kind, j.args, j.tag, j.correlation_id, j.headers, i.word
    from unnest(v_first, v_taken) i join unnest(p_jobs) with ordinality j on j.ordinality = i.nr
    where i.is_new and (i.starts_at > i.since) is not true;
    insert into forebay.deferred (
        run_at, lane, enqueued_at, job_id, expires_at, max_attempts, kind, args, tag, correlation_id, headers, unique_key)
    select i.starts_at, i.its_lane, i.since, i.stands_for, coalesce(i.ends, i.starts_at + interval '30 days'), j.max_attempts,
           j.kind, j.args, j.tag, j.correlation_id, j.headers, i.word
    from unnest(v_first, v_taken) i join unnest(p_jobs) with ordinality j on j.ordinality = i.nr
    where i.is_new and i.starts_at > i.since;

    for v_row in select i.nr, i.stands_for from unnest(v_first, v_taken) i loop
        v_ids[v_row.nr] := v_row.stands_for;
    end loop;
    -- Further jobs of a key: who has a generation open is alone with it, so that they wait for nobody.
    for v_item in select i.* from unnest(v_items) i where i.nr <> i.first_nr loop
        if v_item.code in ('r', 'd') then
            v_ids[v_item.nr] := (forebay._enqueue_unique(
                p_jobs[v_item.nr], v_item.start, v_item.unique_as, format('job %s: ', v_item.nr - 1))).job_id;
        elsif v_item.differs then
            perform forebay._raise_differs(v_item.word, v_ids[v_item.first_nr], format('job %s: ', v_item.nr - 1));
        else
            v_ids[v_item.nr] := v_ids[v_item.first_nr];
        end if;
    end loop;

    if cardinality(v_items) < cardinality(p_jobs) then
        for v_row in
            select p.nr, p.job_id
            from unnest(
                array(select j.ordinality from unnest(p_jobs, p_unique_as) with ordinality j where j.unnest is null order by j.ordinality),
                forebay._enqueue_jobs(array(
                    select row(j.kind, j.args, j.queue, j.priority, j.delay, j.run_at, j.expires_at, j.max_attempts, j.tag,
                               j.correlation_id, j.headers, j.ordering_key, j.limit_key)::forebay._job_input
                    from unnest(p_jobs, p_unique_as) with ordinality j where j.unnest is null order by j.ordinality))) p (nr, job_id)
        loop
            v_ids[v_row.nr] := v_row.job_id;
        end loop;
    end if;
    return v_ids;
end
$$;
