-- The jobs of a bulk enqueue that have a unique key, in the order in which keys are taken.
--
-- Errors: JQ001 naming the first bad job by its index.
create function forebay._key_inputs(p_jobs forebay._job_input[], p_unique_as jsonb[], p_noun text) returns forebay._key_input[]
language plpgsql volatile
as $$
declare
    v_now    constant timestamptz := forebay._now();
    v_shards constant jsonb := forebay._shards(array(select distinct j.queue from unnest(p_jobs) j));
    v_row    record;
begin
    for v_row in
        select u.ordinality - 1 as index,
               forebay._unique_problem(u.unique_as, make_interval(secs => u.delay), u.run_at, u.expires_at) as problem
        from (select j.delay, j.run_at, j.expires_at, j.unnest as unique_as, forebay._uniqueness_mode(j.unnest) as mode, j.ordinality
              from unnest(p_jobs, p_unique_as) with ordinality j
              where j.unnest is not null offset 0) u
        where (u.mode in ('once', 'idempotent', 'coalesce', 'replace') and jsonb_typeof(u.unique_as -> u.mode) = 'string'
               and length(u.unique_as ->> u.mode) between 1 and 200 and u.unique_as ->> u.mode !~ E'[{control}]'
               and u.unique_as - u.mode = '{}') is not true
        order by u.ordinality
    loop
        if v_row.problem is not null then
            raise exception using errcode = 'JQ001', message = format('%s %s: %s', p_noun, v_row.index, v_row.problem),
                detail = jsonb_build_object('index', v_row.index),
                hint = 'Nothing was enqueued: a bulk call is all or none.';
        end if;
    end loop;
    for v_row in
        select distinct j.queue, j.priority, j.ordering_key is not null as is_keyed, j.limit_key is not null as is_limited from unnest(p_jobs, p_unique_as) j where j.unnest is not null
    loop
        if v_row.is_keyed then
            perform forebay._record_keyed_lane(v_row.queue, v_row.priority, 0);
        elsif v_row.is_limited then
            perform forebay._record_limited_lane(v_row.queue, v_row.priority, 0);
        else
            perform forebay._record_lanes(v_row.queue, v_row.priority, v_shards);
        end if;
    end loop;
    return array(
        select row(u.nr, first_value(u.nr) over same, u.digest <> first_value(u.digest) over same, u.queue, left(u.mode, 1)::"char", u.word,
                   u.unique_as, u.lane, u.start, u.expires_at, u.digest)::forebay._key_input
        from (select j.ordinality as nr, j.queue, j.mode, j.unique_as ->> j.mode as word, j.unique_as, j.expires_at,
                     case when j.ordering_key is not null then forebay._keyed_lane_id(j.queue, j.priority, 0)
                          when j.limit_key is not null then forebay._limited_lane_id(j.queue, j.priority, 0)
                          else forebay._lane_for_place(j.queue, j.priority, j.ordinality, v_shards) end as lane,
                     coalesce(j.run_at, v_now + make_interval(secs => j.delay)) as start,
                     case when j.mode = 'idempotent' then sha256(convert_to(j.kind || ' ' || coalesce(j.unique_as -> 'request', j.args)::text, 'UTF8')) end as digest
              from (select i.*, i.unnest as unique_as, forebay._uniqueness_mode(i.unnest) as mode from unnest(p_jobs, p_unique_as) with ordinality i
                    where i.unnest is not null offset 0) j) u
        window same as (partition by u.queue collate "C", u.mode collate "C", u.word collate "C" order by u.nr)
        order by u.queue collate "C", u.mode collate "C", u.word collate "C", u.nr);
end
$$;


-- Write checked jobs of which some have a unique key; returns their ids in input order, and which are new. Keys are taken in sorted order, so
-- that two calls with the same keys cannot deadlock.
--
-- A key that another transaction took first is taken separately. The keys after it, of which none was taken yet, are read
-- again, at first a few.
--
-- p_noun: what the caller calls a job, for errors.
-- Errors: JQ001, JQ004 and JQ005 naming the job by its index.
create function forebay._enqueue_mixed(p_jobs forebay._job_input[], p_unique_as jsonb[], p_noun text default 'job', out ids bigint[], out news boolean[])
language plpgsql volatile
as $$
declare
    v_ids    bigint[] := array_fill(null::bigint, array[cardinality(p_jobs)]);
    v_news   boolean[] := array_fill(null::boolean, array[cardinality(p_jobs)]);
    v_items  forebay._key_input[] := forebay._key_inputs(p_jobs, p_unique_as, p_noun);
    v_first  forebay._key_input[] := array(select i from unnest(v_items) i where i.nr = i.first_nr);
    v_item   forebay._key_input;
    v_taken  forebay._key_taken[] := '{}';
    v_part   forebay._key_taken[];
    v_most   integer;
    v_made   record;
    v_row    record;
begin
    -- A caller that will not wait takes each key separately.
    v_most := case when exists (select from unnest(v_items) i where i.unique_as ->> 'on_busy' = 'raise') then 0 else 1000 end;
    while cardinality(v_taken) < cardinality(v_first) loop
        v_part := case when v_most > 0 then forebay._take_keys(v_first[cardinality(v_taken) + 1 : cardinality(v_taken) + v_most]) else '{}' end;
        v_taken := v_taken || v_part;
        if cardinality(v_part) < v_most and cardinality(v_taken) < cardinality(v_first) or v_most = 0 then
            v_item := v_first[cardinality(v_taken) + 1];
            select u.* into v_made from forebay._enqueue_unique(
                p_jobs[v_item.nr], v_item.start, v_item.unique_as, format('%s %s: ', p_noun, v_item.nr - 1)) u;
            v_taken := v_taken || row(v_made.job_id, false, null, null)::forebay._key_taken;  -- It is written.
            v_news[v_item.nr] := v_made.is_new;
            v_most := least(v_most, 8);
        end if;
        v_most := least(v_most * 4, 1000);
    end loop;

    for v_row in
        select i.its_queue as queue, count(*) as more, bool_or((i.starts_at > i.since) is not true) as is_ready from unnest(v_first, v_taken) i
        where i.is_new group by 1
    loop
        if pg_sequence_last_value('forebay.limit_seq') is not null then
            perform forebay._require_below_max_waiting(v_row.queue, v_row.more);
        end if;
        if v_row.is_ready then
            perform forebay._notify(v_row.queue);
        end if;
    end loop;
    -- Their numbers were drawn after their xid, with the generations.
    insert into forebay.log (seq, lane, enqueued_at, expires_at, unique_key, {job})
    select i.stands_for, i.its_lane, i.since, i.ends, i.word, {job of j}
    from unnest(v_first, v_taken) i join unnest(p_jobs) with ordinality j on j.ordinality = i.nr
    where i.is_new and (i.starts_at > i.since) is not true;
    insert into forebay.deferred (run_at, lane, enqueued_at, job_id, expires_at, unique_key, {job})
    select i.starts_at, i.its_lane, i.since, i.stands_for, coalesce(i.ends, i.starts_at + interval '30 days'), i.word,
           {job of j}
    from unnest(v_first, v_taken) i join unnest(p_jobs) with ordinality j on j.ordinality = i.nr
    where i.is_new and i.starts_at > i.since;
    perform forebay._announce_due(min(i.starts_at)) from unnest(v_first, v_taken) i where i.is_new and i.starts_at > i.since;

    for v_row in select i.nr, i.stands_for, i.is_new from unnest(v_first, v_taken) i loop
        v_ids[v_row.nr] := v_row.stands_for;
        v_news[v_row.nr] := coalesce(v_news[v_row.nr], v_row.is_new);
    end loop;
    -- Further jobs of a key: this transaction has the open generation, so they wait for no other session.
    for v_item in select i.* from unnest(v_items) i where i.nr <> i.first_nr loop
        if v_item.code in ('r', 'd') then
            select u.* into v_made from forebay._enqueue_unique(
                p_jobs[v_item.nr], v_item.start, v_item.unique_as, format('%s %s: ', p_noun, v_item.nr - 1)) u;
            v_ids[v_item.nr] := v_made.job_id;
            v_news[v_item.nr] := v_made.is_new;
        elsif v_item.differs then
            perform forebay._raise_differs(v_item.word, v_ids[v_item.first_nr], format('%s %s: ', p_noun, v_item.nr - 1));
        else
            v_ids[v_item.nr] := v_ids[v_item.first_nr];
            v_news[v_item.nr] := false;
        end if;
    end loop;

    if cardinality(v_items) < cardinality(p_jobs) then
        for v_row in
            select p.nr, p.job_id
            from unnest(
                array(select j.ordinality from unnest(p_jobs, p_unique_as) with ordinality j where j.unnest is null order by j.ordinality),
                forebay._enqueue_jobs(array(
                    select row(j.queue, j.priority, j.delay, j.run_at, j.expires_at, {job of j})::forebay._job_input
                    from unnest(p_jobs, p_unique_as) with ordinality j where j.unnest is null order by j.ordinality))) p (nr, job_id)
        loop
            v_ids[v_row.nr] := v_row.job_id;
        end loop;
    end if;
    ids := v_ids;
    news := v_news;
end
$$;
