-- grant: operator

-- Redrive every dead letter that matches and was not redriven, in the order their jobs were
-- enqueued; returns how many. Dead letters of closed groups are left alone.
--
-- Parameters:
--   queue, kind, tag, group_name
--                            null: any
--   reason                   exhausted, permanent, expired or worker lost
--   died_after, died_before  the time of the death; the first is inclusive, the second exclusive
--   most                     the maximum number of dead letters
--   job_id                   only those of this job
--   cause                    only those of this cause, from forebay.dead_groups()
--   endpoint                 only deliveries to this endpoint
--   to_group                 for this group of their queues, not for the one in which they died
--   token                    from forebay.plan_redrive(): only those. Newer ones are left
--   step                     the maximum number in this call. With a token: call again until fewer
--                            come back. A repeated call takes those that are left
--
-- Errors: as forebay.redrive(); JQ001 a negative `most` or `step`; JQ042 other dead letters than those of the token.
-- Locks: the dead letters' rows; rows that another session is redriving are skipped.
-- See: docs/design/engine.md
--
-- Inside: Invariant "a token is a set": the token has a digest of the dead letters that the dry run
-- counted. Those that were redriven since belong to it and are left alone; if one was deleted, or
-- another one came, the token is refused. Numbers say what came since, not a clock, which may go
-- back.
create function forebay.redrive_matching(
    queue text default null, kind text default null, reason text default null, tag text default null,
    group_name text default null, died_after timestamptz default null, died_before timestamptz default null,
    most integer default null, job_id bigint default null,
    cause text default null, to_group text default null, token text default null, step integer default null,
    endpoint text default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
declare
    v_filter constant jsonb := forebay._dead_filter(queue, kind, reason, tag, group_name, died_after, died_before, most, job_id, cause, to_group, endpoint);
    v_seen   constant text[] := regexp_match(token, E'^\\d{1,18}-((\\d{1,18})-(\\d{1,18})-(\\d{1,18}))-');
    v_found  record;
    v_id     bigint;
    v_count  bigint := 0;
begin
    perform forebay._require('step', coalesce(step, 1) >= 0, step::text, '0 or more');
    select m.* into v_found from forebay._matching_dead(v_filter, coalesce(v_seen[2]::bigint, 9223372036854775807), v_seen[3]::bigint) m;
    if token is not null and forebay._token(v_found.jobs, v_seen[1], jsonb_build_array('redrive', v_filter, v_found.digest)) is distinct from token then
        perform forebay._refuse_token(token);
    end if;
    for v_id in
        select d.dead_id from forebay.dead_letter d
        where d.dead_id = any (v_found.dead_ids) and d.redriven_at is null order by d.enqueued_at, d.job_id limit step for update of d skip locked
    loop
        perform forebay._redrive(v_id, to_group);
        v_count := v_count + 1;
    end loop;
    if v_count > 0 then
        -- The steps of a token are one event.
        update forebay.event e set count = e.count + v_count
        where e.event_id = (select max(i.event_id) from forebay.event i
                            where i.event_id > v_seen[4]::bigint and i.act = 'dead.redrive' and i.role = session_user
                              and i.new ->> 'token' = token);
        if not found then
            perform forebay._record_event('dead.redrive', queue, group_name, kind, p_count => v_count,
                p_new => jsonb_strip_nulls(v_filter - '{queue,group_name,kind}'::text[] || jsonb_build_object('token', token)));
        end if;
    end if;
    return v_count;
end
$$;


-- What forebay.redrive_matching() would redrive: the token, the number of dead letters, and when the
-- first and the last of them died. Changes nothing.
create function forebay.plan_redrive(
    queue text default null, kind text default null, reason text default null, tag text default null,
    group_name text default null, died_after timestamptz default null, died_before timestamptz default null,
    most integer default null, job_id bigint default null,
    cause text default null, to_group text default null, endpoint text default null, out token text, out jobs bigint, out oldest_at timestamptz, out newest_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
declare
    v_filter constant jsonb := forebay._dead_filter(queue, kind, reason, tag, group_name, died_after, died_before, most, job_id, cause, to_group, endpoint);
    v_last   constant bigint := coalesce((select max(d.dead_id) from forebay.dead_letter d), 0);
    v_seen   constant text := concat_ws('-', v_last, coalesce(pg_sequence_last_value('forebay.log_seq'), 0),
                                        coalesce(pg_sequence_last_value('forebay.event_event_id_seq'), 0));
    v_digest numeric;
begin
    select m.jobs, m.oldest_at, m.newest_at, m.digest into jobs, oldest_at, newest_at, v_digest from forebay._matching_dead(v_filter, v_last, null) m;
    token := forebay._token(jobs, v_seen, jsonb_build_array('redrive', v_filter, v_digest));
end
$$;


-- The conditions of dead letters, and to which group they go, without nulls.
create function forebay._dead_filter(
    queue text, kind text, reason text, tag text, group_name text, died_after timestamptz, died_before timestamptz, most integer, job_id bigint,
    cause text, to_group text, endpoint text)
returns jsonb
language sql stable
as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'queue', queue, 'kind', kind, 'reason', reason, 'tag', tag, 'group_name', group_name, 'died_after', died_after, 'died_before', died_before,
        'most', case when forebay._require('most', coalesce(most, 1) >= 0, most::text, '0 or more') then most end, 'job_id', job_id, 'cause', cause, 'to_group', to_group,
        'endpoint', endpoint))
$$;


-- The dead letters up to a number that match a filter and can be redriven, or could when p_seq was the last number of a job, the oldest
-- jobs first; and a digest of them.
create function forebay._matching_dead(
    p_filter jsonb, p_last bigint, p_seq bigint, out dead_ids bigint[], out jobs bigint, out oldest_at timestamptz, out newest_at timestamptz, out digest numeric)
language sql stable
-- planner: in order
as $$
    select coalesce(array_agg(m.dead_id), '{}'), count(*), min(m.died_at), max(m.died_at), coalesce(sum(hashint8extended(m.dead_id, 0)), 0)
    from (select d.dead_id, d.died_at
          from forebay.dead_letter d
          join forebay.queue_group g on g.group_id = d.group_id
          where (d.redriven_at is null or d.redriven_as > p_seq) and g.closing_at is null and d.dead_id <= p_last
            and (p_filter ->> 'queue' is null or d.queue = p_filter ->> 'queue')
            and (p_filter ->> 'kind' is null or d.kind = p_filter ->> 'kind')
            and (p_filter ->> 'reason' is null or d.reason = p_filter ->> 'reason')
            and (p_filter ->> 'tag' is null or d.tag = p_filter ->> 'tag')
            and (p_filter ->> 'group_name' is null or g.name = p_filter ->> 'group_name')
            and (p_filter ->> 'cause' is null or d.cause = p_filter ->> 'cause')
            and (p_filter ->> 'endpoint' is null or d.queue = 'forebay.deliver' and d.limit_key = p_filter ->> 'endpoint')
            and (p_filter ->> 'job_id' is null or d.job_id = (p_filter ->> 'job_id')::bigint)
            and (p_filter ->> 'died_after' is null or d.died_at >= (p_filter ->> 'died_after')::timestamptz)
            and (p_filter ->> 'died_before' is null or d.died_at < (p_filter ->> 'died_before')::timestamptz)
          order by d.enqueued_at, d.job_id
          limit (p_filter ->> 'most')::bigint) m
$$;
