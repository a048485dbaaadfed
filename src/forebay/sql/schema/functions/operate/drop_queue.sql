-- grant: operator

-- Drop a queue: cancel the jobs that wait, close its consumer groups, and remove its settings:
-- limits of the queue and of its keys, breakers, shards, pauses, maximum attempts, the time for which dead
-- letters are kept, notices, what an application declared, and that kinds belong to it. Its subjects are
-- dropped too, all in this call: with many, call forebay.drop_subjects() first.
--
-- forebay.close_groups() does the rest of closing the groups: workers call it, and so does `forebay
-- queues drop`. Dead letters, results and events stay, with their own times. A job that is enqueued
-- later makes the queue anew, and a worker that serves it opens its group again.
--
-- Parameters:
--   token    from `forebay.plan_change('truncate', ...)`: refuse if other jobs wait now
--   force    drop it although workers serve it: their running jobs finish
--   dry_run  change nothing
--
-- Columns:
--   cancelled  jobs that waited, without the runs of subjects
--   running    jobs that workers have
--   groups     those that were closed
--   settings   what was removed: `limits`, `key limits`, `shards`, `paused keys`, `max attempts`,
--              `dead letters`, `notices`, `declared`, `kinds`, `subjects`
--   subjects   those that were dropped, whatever their state
--
-- Errors: JQ001 no queue is given, or one of Forebay; JQ014 no such queue; JQ017 workers serve it
--   and `force` is not set; JQ042 other jobs wait than those of the token.
-- Locks: the settings lock, rows of its groups, and those of forebay.limit_queue(), forebay.limit_key() and
--   forebay.resume_key(), until the transaction ends.
-- See: docs/howto/manage-queues.md#drop-a-queue
create function forebay.drop_queue(
    queue text, token text default null, force boolean default false, dry_run boolean default false,
    out cancelled bigint, out running bigint, out groups text[], out settings text[], out subjects bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: short
as $$
declare
    v_queue   constant text := drop_queue.queue;
    v_filter  constant jsonb := jsonb_build_object('queue', v_queue);
    v_seen    jsonb;
    v_state   record;
    v_runs    bigint;
    v_key     record;
begin
    if v_queue is null or starts_with(v_queue, 'forebay.') then
        raise exception using errcode = 'JQ001', column = 'queue',
            message = format('queue %s cannot be dropped', coalesce(quote_literal(left(v_queue, 40)), 'null')),
            hint = 'Give the name of a queue that is not one of Forebay.';
    end if;
    perform forebay._lock_settings();
    if drop_queue.dry_run is not true then
        delete from forebay.breaker b where b.queue = v_queue;  -- Before limits and groups, as reports.
    end if;
    lock table forebay.queue_group in row exclusive mode;  -- Before its rows, as calls that open or close a group.
    perform from forebay.queue_group g where g.queue = v_queue order by g.group_id for no key update;
    settings := array_remove(array[
        case when exists (select from forebay.queue_limits l where l.queue = v_queue) then 'limits' end,
        case when exists (select from forebay.key_limits l where l.queue = v_queue) then 'key limits' end,
        case when exists (select from forebay.queue_shards s where s.queue = v_queue) then 'shards' end,
        case when exists (select from forebay.key_pause p where p.queue = v_queue) then 'paused keys' end,
        case when exists (select from forebay.queue_attempts a where a.queue = v_queue) then 'max attempts' end,
        case when exists (select from forebay.dead_retention r where r.queue = v_queue) then 'dead letters' end,
        case when exists (select from forebay.queue_notices n where n.queue = v_queue) then 'notices' end,
        case when exists (select from forebay.applied_setting a where a.queue = v_queue) then 'declared' end,
        case when exists (select from forebay.kind_queue k where k.queue = v_queue) then 'kinds' end,
        case when exists (select from forebay.subject s where s.queue = v_queue) then 'subjects' end], null);
    select coalesce(array_agg(g.group_name order by g.group_name) filter (where not g.is_implied and g.closing_at is null), '{}') as names,
           coalesce(sum(g.running), 0) as running, string_agg(g.group_name, ', ' order by g.group_name) filter (where g.is_served) as served, count(*) as count
    into v_state from forebay.groups(v_queue) g;
    groups := v_state.names;
    running := v_state.running;
    if v_state.count = 0 and settings = '{}' and not exists (select from forebay.lane l where l.queue = v_queue) then
        raise exception using errcode = 'JQ014',
            message = format('there is no queue %s', quote_literal(left(v_queue, 128))),
            detail = jsonb_build_object('queue', v_queue, 'group', null),
            hint = 'Nothing was changed. `forebay queues list` lists the queues.';
    elsif v_state.served is not null and drop_queue.force is not true and drop_queue.dry_run is not true then
        raise exception using errcode = 'JQ017',
            message = format('workers serve queue %s: they have %s jobs of it', v_queue, running),
            detail = jsonb_build_object('queue', v_queue, 'group', v_state.served),
            hint = 'Nothing was changed. Stop the workers of this queue first, or force it: running jobs finish, and the workers get no more.';
    end if;
    if drop_queue.dry_run then
        select coalesce(sum(c.subjects), 0), coalesce(sum(c.subjects) filter (where c.state = 'ready'), 0) into subjects, v_runs
        from forebay.subject_counts(v_queue) c;
        cancelled := (select greatest(coalesce(sum(p.jobs), 0) - v_runs, 0)
                      from forebay.plan_change('truncate', jsonb_build_object('queue', v_queue)) p where p.answer = 'cancelled');
        return;
    end if;
    perform forebay._drop_subject(v_queue, s.subject) from forebay.subject s
    where s.queue = v_queue and (forebay._newest_state(s.subject_id)).state <> 'g';
    get diagnostics subjects = row_count;
    if drop_queue.token is not null then
        v_seen := forebay._seen_by_change(drop_queue.token, 'truncate', v_filter, '{}');
        if exists (select from forebay._matching('truncate', v_filter, '{}', true, null) m
                   where m.job_id not in (select i.job_id from forebay._matching(
                       'truncate', v_filter, v_seen || jsonb_build_object('until', (forebay._seen_by_token(drop_queue.token)).until_seq), true, null) i)) then
            perform forebay._refuse_token(drop_queue.token);
        end if;
    end if;
    cancelled := forebay.truncate_queue(v_queue);
    perform forebay.close_group(v_queue, g.name, force => true)
    from (select u.name from unnest(groups) u (name) order by u.name) g;
    perform forebay.resume_queue(v_queue) from (select) s where v_state.count > cardinality(groups);

    for v_key in select l.key from forebay.key_limits l where l.queue = v_queue order by l.key loop
        perform forebay._set_key_probes(v_queue, v_key.key, null, null);
        perform forebay.limit_key(v_queue, v_key.key, remove => true);
    end loop;
    if exists (select from forebay.queue_limits l where l.queue = v_queue) then
        perform forebay.limit_queue(v_queue, remove => '{all}');
    end if;
    for v_key in select p.sort, p.key from forebay.key_pause p where p.queue = v_queue order by p.sort, p.key loop
        perform forebay.resume_key(v_queue, case v_key.sort when 'ordering' then v_key.key end, case v_key.sort when 'limit' then v_key.key end);
    end loop;
    delete from forebay.key_pause p where p.queue = v_queue;  -- Those that had ended.
    if 'shards' = any (settings) then
        perform forebay.shard_queue(v_queue, 1);
        delete from forebay.queue_shards s where s.queue = v_queue;
    end if;
    if 'dead letters' = any (settings) then
        perform forebay.keep_dead(v_queue, inherit => true);
    end if;
    perform forebay.set_max_attempts(v_queue);
    delete from forebay.applied_setting a where a.queue = v_queue;
    delete from forebay.kind_queue k where k.queue = v_queue;
    perform forebay._record_event('queues.drop', v_queue, p_count => cancelled,
                                  p_new => jsonb_build_object('groups', groups, 'settings', settings, 'running', running, 'subjects', subjects));
    delete from forebay.queue_notices n where n.queue = v_queue;  -- Last: the drop is announced.
end
$$;
