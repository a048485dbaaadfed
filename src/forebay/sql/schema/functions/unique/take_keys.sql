-- What a call does about a key: keep the existing job, join it, or make a generation.
create function forebay._key_action(p_code "char", p_state text) returns text
language sql immutable
as $$
    select case when p_state <> 'ended' and p_code in ('o', 'i', 't') then 'keep'
                when p_state = 'waiting' and p_code = 'c' then 'join'
                else 'make' end
$$;


-- Append generations, one after the other, up to the first one that another transaction has made meanwhile, or until the states
-- read for their keys are too old; returns their jobs' numbers. None is made after one that was not, so a call always takes the
-- first of its keys. The first generation is tried whatever the time.
--
-- The number made is in a setting of the transaction, forebay.taken, which each written row advances; a row is processed only
-- when all before it were written. If the server did not work row by row, it would make fewer, and none out of order.
create function forebay._make_generations(p_keys forebay.unique_key[], p_until timestamptz) returns bigint[]
language plpgsql volatile
as $$
declare
    v_job_ids bigint[];
begin
    perform set_config('forebay.taken', '0', true);
    with made as (
        insert into forebay.unique_key (
            queue, mode, key, gen, lane, is_deferred, taken_at, expires_at, free_at, first_at, payload, origin)
        select k.queue, k.mode, k.key, k.gen, k.lane, k.is_deferred, k.taken_at, k.expires_at, k.free_at, k.first_at, k.payload, k.origin
        from unnest(p_keys) with ordinality k
        where k.ordinality - 1 = current_setting('forebay.taken')::bigint and (k.ordinality = 1 or clock_timestamp() < p_until)
        on conflict do nothing
        returning job_id, set_config('forebay.taken', (current_setting('forebay.taken')::bigint + 1)::text, true))
    select coalesce(array_agg(m.job_id), '{}') into v_job_ids from made m;
    return v_job_ids;
end
$$;


-- Do for many different keys at once what forebay._enqueue_unique() does for one: read, lock, read again, append. Returns the
-- results of the first keys, up to one that another transaction took first, or that was not taken within a quarter of a second
-- after the read: a key before it had to wait, and the states of the others may have changed. New jobs are not written yet.
--
-- Errors: JQ005 naming the job by its index.
create function forebay._take_keys(p_items forebay._key_input[]) returns forebay._key_taken[]
language plpgsql volatile
-- planner: no bitmap
as $$
declare
    v_now    timestamptz;
    v_until  timestamptz;
    v_lasts  forebay.unique_key[];
    v_key_states text[];
    v_later  text[];
    v_taken  forebay._key_taken[];
    v_cut    bigint;
    v_make   record;
    v_made   bigint[];
    v_gone   bigint[];
    v_row    record;
begin
    v_lasts := array(
        select k.last from unnest(p_items) with ordinality i
        left join lateral (select u as last from forebay.unique_key u
                           where u.queue = i.its_queue and u.mode = i.code and u.key = i.word
                           order by u.gen desc limit 1) k on true
        order by i.ordinality);
    v_key_states := forebay._key_states_of(v_lasts);
    v_now := forebay._now();  -- Not before the read: a period counts from the job for which it was over.
    v_until := clock_timestamp() + interval '250 ms';
    for v_row in
        select k.nr, k.word, k.job_id from unnest(p_items, v_lasts, v_key_states) k where k.code = 'i' and k.unnest <> 'ended' and k.digest <> k.payload
    loop
        perform forebay._raise_differs(v_row.word, v_row.job_id, format('job %s: ', v_row.nr - 1));
    end loop;

    -- Lock the predecessors, so that maintenance keeps them.
    select coalesce(min(k.ordinality), cardinality(p_items) + 1) into v_cut
    from (select i.* from unnest(p_items, v_lasts, v_key_states) with ordinality i
          where i.gen is not null and forebay._key_action(i.code, i.unnest) = 'make' offset 0) k
    left join lateral (select true as is_held from forebay.unique_key u
                       where u.queue = k.queue and u.mode = k.mode and u.key = k.key and u.gen = k.gen for key share) h on true
    where h.is_held is null;
    -- Join, so that the claim notices, and read again.
    if exists (select from unnest(p_items, v_key_states) i where forebay._key_action(i.code, i.unnest) = 'join') then
        select least(v_cut, min(k.ordinality)) into v_cut
        from (select i.* from unnest(p_items, v_lasts, v_key_states) with ordinality i
              where forebay._key_action(i.code, i.unnest) = 'join' offset 0) k
        left join lateral (select true as is_held from forebay.unique_key u
                           where u.queue = k.queue and u.mode = k.mode and u.key = k.key and u.gen = k.gen for share) h on true
        where h.is_held is null;
        v_later := forebay._key_states_of(v_lasts);
        select least(v_cut, min(s.nr)) into v_cut
        from unnest(array(select forebay._key_action(i.code, i.unnest) from unnest(p_items, v_key_states) i), v_later)
             with ordinality s (action, later, nr)
        where s.action = 'join' and s.later <> 'waiting';
    end if;

    v_taken := array(select row(k.job_id, false, null, null)::forebay._key_taken from unnest(v_lasts) with ordinality k order by k.ordinality);
    select coalesce(array_agg(m.ordinality), '{}') as places, array_agg(m.start) as starts,
           array_agg(case when m.key_state <> 'ended' then m.job_id end) as gone,
           array_agg(case when m.key_state = 'waiting' then m.job_id end) as replaced,
           array_agg(row(null, m.its_queue, m.code, m.word, m.next, null, m.its_lane, coalesce(m.start > v_now, false), v_now,
                         coalesce(m.ends, greatest(m.start, v_now) + interval '30 days'),
                         case when m.code = 't' then v_now + make_interval(secs => forebay._unique_seconds(m.unique_as, 'period')) end,
                         m.first, m.digest, case when m.key_state = 'running' then m.gen else m.next end)::forebay.unique_key) as keys
    into v_make
    from (select k.ordinality, k.its_queue, k.code, k.word, k.unique_as, k.its_lane, k.ends, k.digest, k.gen, k.job_id, k.key_state, k.first,
                 coalesce(k.gen, 0) + 1 as next,
                 case when k.code <> 'd' then k.start
                      else least(v_now + make_interval(secs => forebay._unique_seconds(k.unique_as, 'wait')),
                                 k.first + make_interval(secs => forebay._unique_seconds(k.unique_as, 'max_wait'))) end as start
          from (select i.*, i.unnest as key_state,
                       case when i.code <> 'd' then null when i.unnest = 'waiting' then i.first_at else v_now end as first
                from unnest(p_items, v_lasts, v_key_states) with ordinality i) k
          where k.ordinality < v_cut and forebay._key_action(k.code, k.key_state) = 'make'
          order by k.ordinality) m;
    if cardinality(v_make.places) > 0 then
        v_made := forebay._make_generations(v_make.keys, v_until);
        v_cut := coalesce(v_make.places[cardinality(v_made) + 1], v_cut);
        if clock_timestamp() >= v_until and cardinality(v_made) > 0 then
            v_cut := v_make.places[cardinality(v_made)] + 1;  -- The last one waited: so do all after it, also those not to be made.
        end if;
        for v_row in select m.* from unnest(v_make.places, v_made, v_make.starts) m (place, job_id, start) where m.job_id is not null loop
            v_taken[v_row.place] := row(v_row.job_id, true, v_now, v_row.start)::forebay._key_taken;
        end loop;
        insert into forebay.tombstone (job_id, reason, recorded_at)
        -- Whatever the state of the predecessors, they do not start again.
        select g.job_id, 'r'::"char", v_now from unnest(v_make.gone, v_made) g (job_id, made) where g.made is not null and g.job_id is not null
        union all
        select k.unnest, 'k', v_now from unnest(v_make.keys, v_made) k where k.unnest is not null and k.mode = 'c';
        v_gone := array(select g.job_id from unnest(v_make.gone, v_made) g (job_id, made) where g.made is not null and g.job_id is not null);
        perform forebay._withdraw(v_gone);
        perform forebay._note_cancelled_jobs(v_gone);
        perform forebay._announce_jobs(r.queue, null, 'cancelled', r.jobs)
        from (select (v_make.keys[i]).queue, array_agg(v_make.replaced[i]) as jobs
              from generate_subscripts(v_made, 1) i
              where v_made[i] is not null and v_make.replaced[i] is not null group by 1) r;
    end if;
    return v_taken[1 : v_cut - 1];
end
$$;
