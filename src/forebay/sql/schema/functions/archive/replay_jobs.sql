-- grant: operator

-- Enqueue jobs of the past again, oldest first, about `most` in a call. Call again with the
-- `replay_id` until `is_over`.
--
-- The new jobs keep queue, priority, kind, arguments, tag, correlation id, headers, ordering key
-- and limit key. They have new attempts, a new expiry and no unique key. Their headers
-- `forebay-replayed-from` and `forebay-replay` have the id of the old job and the number of the
-- replay.
--
-- Parameters:
--   filter     as that of forebay.search_jobs(). Jobs that wait or run match too: bound it by
--              `enqueued_before`, or by a state
--   options    `group`: only this group gets the new jobs; without it, each group of the queue.
--              `state`: only jobs in this state in a group, or in that group; `dead`: those
--              that have a dead letter. `died_after`, `died_before`: only those that died from the
--              first time to before the second. `unfinished_at`, a
--              time: only jobs that had been enqueued and had not ended then
--   token      from forebay.plan_replay(): copy exactly the jobs that it counted, or nothing. It
--              begins one replay: the call that begins it and each later one with this token mean
--              the same replay, also when that is over
--   replay_id  from the first call; `filter`, `options` and `token` are then ignored
--
-- Columns:
--   jobs, total  new jobs of this call, and so far
--   redacted     jobs so far that were left out, because their arguments were erased
--
-- Errors: JQ001 a bad filter, option or replay, JQ014 a queue does not have the group, JQ042 other
--   jobs match than those of the token, 53400 the queue is full.
-- Transaction: the caller's; the new jobs and the position commit together.
-- Locks: the row of the replay, and of its group (SHARE).
-- See: docs/howto/look-back.md#replay-jobs, docs/design/archive.md
--
-- Inside: Invariants: "exactly those jobs, once": the new jobs of a step commit with the position
-- that it has reached. "one token, one replay": the token is unique among the replays, and a replay
-- is forgotten only when none of its jobs is in the log any more.
create function forebay.replay_jobs(
    filter jsonb default null, options jsonb default '{}', token text default null, most integer default 20000, inout replay_id bigint default null,
    out jobs bigint, out total bigint, out is_over boolean, out redacted bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    r         forebay.job_replay;
    v_filter  jsonb;
    v_options jsonb;
    v_found   record;
    v_piece   record;
begin
    if (replay_jobs.most between 1 and 1000000) is not true then
        raise exception using errcode = 'JQ001', column = 'most', message = format('most %s is outside 1 to 1000000', coalesce(replay_jobs.most::text, 'null'));
    end if;
    if replay_jobs.replay_id is null then
        v_filter := forebay._checked_replay(replay_jobs.filter, replay_jobs.options);
        v_options := jsonb_strip_nulls(replay_jobs.options);
        select i.* into r from forebay.job_replay i where i.token = replay_jobs.token;
        if not found then
            r.token := replay_jobs.token;
            r.until_seq := (forebay._seen_by_token(r.token)).until_seq;
            r.snapshot := (forebay._seen_by_token(r.token)).snapshot;
            if r.token is null then
                r.until_seq := coalesce(pg_sequence_last_value('forebay.log_seq'), 0) + 1;
            elsif forebay._replay_token(v_filter, v_options, r.until_seq, r.snapshot) is distinct from r.token then
                perform forebay._refuse_token(r.token);
            end if;
            delete from forebay.job_replay i
            where i.ended_at < forebay._now() - interval '60 days'
              and i.until_seq <= (select min(s.lo) from forebay.segment s where s.removed_at is null);
            -- Another session that begins with this token is waited for.
            insert into forebay.job_replay (replay_id, filter, options, position, until_seq, snapshot, jobs, redacted, begun_at, token)
            values (forebay._random_name(), v_filter, v_options, 1, r.until_seq, r.snapshot, 0, 0, forebay._now(), r.token)
            on conflict on constraint job_replay_token_key do nothing
            returning job_replay.replay_id into r.replay_id;
            if not found then
                select i.replay_id into r.replay_id from forebay.job_replay i where i.token = replay_jobs.token;
            end if;
        end if;
    end if;
    select i.* into r from forebay.job_replay i where i.replay_id = coalesce(replay_jobs.replay_id, r.replay_id) for update;
    if not found then
        raise exception using errcode = 'JQ001', column = 'replay_id', message = format('replay %s not found', replay_jobs.replay_id);
    elsif replay_jobs.replay_id is null and (r.filter, r.options) <> (v_filter, v_options) then
        perform forebay._refuse_token(r.token);
    end if;
    jobs := 0;
    if r.ended_at is null then
        for v_piece in select p.lo, p.hi from forebay._archive_pieces(r.filter, r.options, r.position, r.until_seq) p loop
            v_found := forebay._copy_jobs(r, v_piece.lo, v_piece.hi);
            jobs := jobs + v_found.jobs;
            r.redacted := r.redacted + v_found.redacted;
            r.position := v_piece.hi;
            exit when jobs >= replay_jobs.most;
        end loop;
        is_over := jobs < replay_jobs.most;
        r.jobs := r.jobs + jobs;
        if jobs > 0 and r.event_id is null then
            r.event_id := forebay._record_event('jobs.replay', r.filter ->> 'queue', r.options ->> 'group', r.filter ->> 'kind', r.replay_id,
                p_new => r.options || (r.filter - '{queue,kind,ids}'::text[]), p_count => jobs);
        elsif jobs > 0 then
            update forebay.event e set count = r.jobs where e.event_id = r.event_id;
        end if;
        update forebay.job_replay i
        set position = case when is_over then r.until_seq else r.position end, jobs = r.jobs, redacted = r.redacted, event_id = r.event_id,
            ended_at = case when is_over then forebay._now() end
        where i.replay_id = r.replay_id;
    end if;
    replay_id := r.replay_id;
    total := r.jobs;
    redacted := r.redacted;
    is_over := coalesce(is_over, true);
end
$$;


-- What forebay.replay_jobs() would enqueue: the token, the number of jobs, the oldest and the
-- newest of them, and how many are left out because their arguments were erased. Enqueues nothing.
--
-- Errors: JQ001 a bad filter or option.
create function forebay.plan_replay(
    filter jsonb, options jsonb default '{}', out token text, out jobs bigint, out oldest_at timestamptz, out newest_at timestamptz,
    out redacted bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_filter   constant jsonb := forebay._checked_replay(plan_replay.filter, plan_replay.options);
    v_options  constant jsonb := jsonb_strip_nulls(plan_replay.options);
    v_until    constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0) + 1;
    v_snapshot constant pg_snapshot := pg_current_snapshot();
begin
    select c.jobs, c.oldest_at, c.newest_at, c.redacted, forebay._token(c.jobs, v_until, v_snapshot, jsonb_build_array('replay', v_filter, v_options, c.digest))
    into jobs, oldest_at, newest_at, redacted, token
    from forebay._count_replay(v_filter, v_options, v_until, v_snapshot) c;
end
$$;


-- The token of a replay of what matches now of the jobs that a dry run saw.
create function forebay._replay_token(p_filter jsonb, p_options jsonb, p_until bigint, p_snapshot pg_snapshot) returns text
language sql stable
as $$
    select forebay._token(c.jobs, p_until, p_snapshot, jsonb_build_array('replay', p_filter, p_options, c.digest))
    from forebay._count_replay(p_filter, p_options, p_until, p_snapshot) c
$$;


-- The filter of a replay, checked together with its options.
--
-- Errors: JQ001.
create function forebay._checked_replay(p_filter jsonb, p_options jsonb) returns jsonb
language plpgsql stable
as $$
declare
    v_filter constant jsonb := forebay._checked_filter(p_filter);
    v_name   text;
begin
    if v_filter ? 'state' then
        raise exception using errcode = 'JQ001', column = 'filter', message = 'the filter of a replay has no state', hint = 'Nothing was enqueued. Use the option state.';
    elsif p_options is null or jsonb_typeof(p_options) <> 'object'
          or jsonb_strip_nulls(p_options) - '{group,state,unfinished_at,died_after,died_before}'::text[] <> '{}' then
        raise exception using errcode = 'JQ001', column = 'options', message = 'options are group, state, unfinished_at, died_after and died_before', hint = 'Nothing was enqueued.';
    elsif jsonb_strip_nulls(p_options) ?| '{died_after,died_before}' and p_options ->> 'state' is distinct from 'dead' then
        raise exception using errcode = 'JQ001', column = 'options', message = 'died_after and died_before need the state dead', hint = 'Nothing was enqueued.';
    end if;
    foreach v_name in array '{unfinished_at,died_after,died_before}'::text[] loop
        if p_options ->> v_name is not null and forebay._as_instant(p_options ->> v_name) is null then
            raise exception using errcode = 'JQ001', column = 'options', message = v_name || ' must be a time', hint = 'Nothing was enqueued.';
        end if;
    end loop;
    perform forebay._check_state(p_options ->> 'state');
    return v_filter;
end
$$;


-- The condition of a replay on a first row j, as SQL. With a snapshot, only rows that it shows.
create function forebay._replay_sql(p_filter jsonb, p_options jsonb, p_snapshot pg_snapshot) returns text
language sql stable
as $$
    select forebay._first_rows_filter_sql(p_filter)
        || case when p_options ->> 'state' is null and p_options ->> 'unfinished_at' is null then ''
                else format(' and case when ' || case when p_options ->> 'state' = 'dead'
                                                   then 'exists (select from forebay.dead_letter d where d.job_id = coalesce(j.job_id, j.seq)'
                                                        || forebay._died_sql(p_options) || ')' else 'true' end
                            || ' then exists (select from forebay.job(coalesce(j.job_id, j.seq)) s where (%1$L is null or s.state = %1$L)
                                          and (%2$L is null or s.ended_at is null and s.state not in (''done'', ''dead'', ''cancelled'', ''expired'') or s.ended_at > %2$L)) end',
                            p_options ->> 'state', p_options ->> 'unfinished_at') end
        || case when p_options ->> 'unfinished_at' is null then '' else format(' and j.enqueued_at <= %L', p_options ->> 'unfinished_at') end
        || case when p_snapshot is null then '' else format(' and pg_visible_in_snapshot(j.xid, %L)', p_snapshot) end
$$;


-- The condition on the death of a dead letter d, as SQL.
create function forebay._died_sql(p_options jsonb) returns text
language sql immutable
as $$
    select concat(' and d.died_at >= ' || quote_literal(p_options ->> 'died_after'), ' and d.died_at < ' || quote_literal(p_options ->> 'died_before'))
$$;


-- The jobs that a replay can only take, known by their ids or by their dead letters; null: any.
create function forebay._jobs_of_replay(p_filter jsonb, p_options jsonb) returns bigint[]
language plpgsql stable
-- planner: indexed
as $$
declare
    v_jobs bigint[];
begin
    if p_filter ? 'ids' then
        v_jobs := translate(p_filter ->> 'ids', '[]', '{}');
    elsif p_options ->> 'state' = 'dead' then
        execute 'select coalesce(array_agg(distinct d.job_id), ''{}'') from forebay.dead_letter d where ($1 is null or d.queue = $1)'
                || forebay._died_sql(p_options)
            into v_jobs using p_filter ->> 'queue';
    end if;
    return v_jobs;
end
$$;


-- The parts of the log between two numbers that may have rows of a filter, oldest first: around the rows of jobs that are known; else blocks, and
-- what is not summarized.
create function forebay._archive_pieces(p_filter jsonb, p_options jsonb, p_lo bigint, p_hi bigint) returns table (lo bigint, hi bigint)
language plpgsql stable
-- planner: indexed
as $$
declare
    v_position constant bigint := forebay._archived_up_to();
    v_jobs     constant bigint[] := forebay._jobs_of_replay(p_filter, p_options);
begin
    if v_jobs is not null then
        return query
            select min(r.seq), max(r.seq) + 1
            from (select u.seq from unnest(v_jobs) u (seq)
                  union
                  select l.seq from forebay.log l where l.job_id = any (v_jobs)) r
            where r.seq >= p_lo and r.seq < p_hi
            group by r.seq / 4096
            order by 1;
        return;
    end if;
    return query
        select greatest(b.lo, p_lo), least(b.hi, p_hi)
        from forebay._blocks_with('@>', forebay._terms_of(p_filter), p_lo, p_hi, (p_filter ->> 'enqueued_after')::timestamptz,
                                  (p_filter ->> 'enqueued_before')::timestamptz) b
        where coalesce(b.first_at <= (p_options ->> 'unfinished_at')::timestamptz, true)
        union all
        select p.lo, p.hi from (select greatest(g.lo, p_lo) as lo, least(g.lo + 4096, p_hi) as hi from generate_series(v_position, p_hi - 1, 4096) g (lo)) p
        where p.hi > p.lo
        order by 1;
end
$$;


-- How many jobs a replay would take, and a digest of them.
create function forebay._count_replay(
    p_filter jsonb, p_options jsonb, p_until bigint, p_snapshot pg_snapshot,
    out jobs bigint, out oldest_at timestamptz, out newest_at timestamptz, out digest numeric, out redacted bigint)
language plpgsql stable
-- planner: indexed
as $$
declare
    v_condition constant text := forebay._replay_sql(p_filter, p_options, p_snapshot);
    v_lanes     constant bigint[] := forebay._lanes_of(p_filter ->> 'queue', false);
    v_public    constant bigint[] := forebay._lanes_of(p_filter ->> 'queue', true);
    v_piece     record;
    v_found     record;
begin
    jobs := 0;
    digest := 0;
    redacted := 0;
    for v_piece in select p.lo, p.hi from forebay._archive_pieces(p_filter, p_options, 1, p_until) p loop
        execute 'select count(*) filter (where not f.is_redacted) as jobs, count(*) filter (where f.is_redacted) as redacted,
                        min(f.enqueued_at) filter (where not f.is_redacted) as oldest_at,
                        max(f.enqueued_at) filter (where not f.is_redacted) as newest_at,
                        coalesce(sum(hashint8extended(f.job_id, 0)) filter (where not f.is_redacted), 0) as digest from ('
                || forebay._first_rows_sql(v_piece.lo, v_piece.hi, v_condition) || ') f'
            into v_found using v_piece.lo, v_piece.hi, v_lanes, v_public;
        jobs := jobs + v_found.jobs;
        digest := digest + v_found.digest;
        redacted := redacted + v_found.redacted;
        oldest_at := least(oldest_at, v_found.oldest_at);
        newest_at := greatest(newest_at, v_found.newest_at);
    end loop;
end
$$;


-- The lanes of a queue, null: of all queues; or only the public ones.
create function forebay._lanes_of(p_queue text, p_public boolean) returns bigint[]
language sql stable
as $$
    select array(select distinct l.lane from forebay.lane l where (p_queue is null or l.queue = p_queue) and (l.audience = 0 or not p_public))
$$;


-- Enqueue the jobs of a replay whose first rows have numbers from p_lo to below p_hi; returns how many, and how many it left out because they
-- were erased.
create function forebay._copy_jobs(r forebay.job_replay, p_lo bigint, p_hi bigint, out jobs bigint, out redacted bigint)
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_group  constant text := r.options ->> 'group';
    v_seqs   bigint[];
    v_each   bigint[];  -- the lane of each
    v_lanes  bigint[];
    v_target record;
    v_map    jsonb := '[]';
    v_to     bigint[];
    v_group_id bigint;
    v_segment record;
    v_shards jsonb;
    v_count  bigint;
begin
    jobs := 0;
    execute 'select array_agg(f.seq) filter (where not f.is_redacted), array_agg(f.lane) filter (where not f.is_redacted),
                    array_agg(distinct f.lane) filter (where not f.is_redacted), count(*) filter (where f.is_redacted) from ('
            || forebay._first_rows_sql(p_lo, p_hi, forebay._replay_sql(r.filter, r.options, r.snapshot)) || ') f'
        into v_seqs, v_each, v_lanes, redacted
        using p_lo, p_hi, forebay._lanes_of(r.filter ->> 'queue', false), forebay._lanes_of(r.filter ->> 'queue', true);
    if v_seqs is null then
        return;
    end if;
    if v_group is null and pg_sequence_last_value('forebay.limit_seq') is not null then
        perform forebay._require_below_max_waiting(q.queue, q.jobs)
        from (select l.queue, count(*) as jobs
              from unnest(v_each) u (lane) cross join lateral (select i.queue from forebay.lane i where i.lane = u.lane limit 1) l group by 1) q;
    end if;
    v_shards := forebay._shards(array(select distinct l.queue from forebay.lane l where l.lane = any (v_lanes)));
    for v_target in
        select l.queue, l.priority, l.sort, array_agg(distinct l.lane) as lanes from forebay.lane l where l.lane = any (v_lanes)
        group by 1, 2, 3 order by 1, 2, 3
    loop
        if v_group is not null then
            -- A group that begins to close waits for this transaction, or is seen here.
            select g.group_id into v_group_id from forebay.queue_group g
            where g.queue = v_target.queue and g.name = v_group and g.closing_at is null for share;
            if not found then
                raise exception using errcode = 'JQ014', message = format('queue %s has no group %s', v_target.queue, v_group),
                    detail = jsonb_build_object('queue', v_target.queue, 'group', v_group),
                    hint = 'This step has enqueued nothing. Open the group first, or restrict the filter to a queue that has it.';
            end if;
            v_to := array[forebay._record_private_lane(v_target.queue, v_target.priority, v_group_id,
                              case when v_target.sort = 'keyed' then '' end, case when v_target.sort = 'limited' then '' end)];
        elsif v_target.sort = 'plain' then
            v_to := forebay._record_lanes(v_target.queue, v_target.priority, v_shards);
        else
            v_to := array[forebay._record_private_lane(v_target.queue, v_target.priority, 0,
                              case when v_target.sort = 'keyed' then '' end, case when v_target.sort = 'limited' then '' end)];
        end if;
        v_map := v_map || (select jsonb_agg(jsonb_build_object('lane', u, 'to', v_to)) from unnest(v_target.lanes) u);
        perform forebay._notify(v_target.queue);
    end loop;
    for v_segment in
        select s.segment_id from forebay.segment s where s.lo < p_hi and s.hi > p_lo and s.removed_at is null and forebay._has_table(s.segment_id) order by 1
    loop
        -- seq + 0: the block index would be searched once for each number.
        execute format(
            'with m as materialized (
                 select (u ->> ''lane'')::bigint as lane, array(select t::bigint from jsonb_array_elements_text(u -> ''to'') t) as lanes
                 from jsonb_array_elements($5) u)
             insert into forebay.log (lane, enqueued_at, headers, {job but headers})
             select m.lanes[1 + j.seq %% cardinality(m.lanes)], $3,
                    coalesce(j.headers, ''{}'') || jsonb_build_object(''forebay-replayed-from'', coalesce(j.job_id, j.seq)::text, ''forebay-replay'', $4::text),
                    {job of j but headers}
             from forebay.log_%s j join m on m.lane = j.lane
             where j.seq >= $1 and j.seq < $2 and j.seq + 0 = any ($6) and not coalesce(j.headers ? ''forebay-redacted'', false)
             order by j.seq', v_segment.segment_id)
            using p_lo, p_hi, forebay._now(), r.replay_id, v_map, v_seqs;
        get diagnostics v_count = row_count;
        jobs := jobs + v_count;
    end loop;
end
$$;
