-- A flow gives its slot back, in the settlement of its attempt: what it waits for. Returns when it runs again; null: at once.
--
-- Invariant "woken once": who waits and what it waits for each write a wake row, in the commit that makes them known. Promotion visits each
-- such row once, after that commit, so the later of the two visits sees both. See docs/design/flows.md.
--
-- Parameters: p_flow, the key `flow` of an end, see forebay.settle_v1().
create function forebay._park(p_row forebay.log, p_group_id bigint, p_flow jsonb) returns timestamptz
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_job_id constant bigint := coalesce(p_row.job_id, p_row.seq);
    v_now    constant timestamptz := forebay._now();
    v_until  constant timestamptz := least(coalesce((p_flow ->> 'until')::timestamptz, v_now + make_interval(secs => (p_flow ->> 'after')::double precision)),
                                           v_now + interval '100 years');
    v_wait   constant jsonb := p_flow -> 'wait';
    v_holder bigint;
begin
    if v_wait is not null then
        if pg_sequence_last_value('forebay.flow_seq') is null then
            perform nextval('forebay.flow_seq');
        end if;
        -- One whose time is over takes no signal from another flow: see forebay.end_wait_v1().
        delete from forebay.waiter w
        where w.name = v_wait ->> 'name' and w.key = v_wait ->> 'key' and (w.until <= v_now or forebay._is_over(w.job_id, w.group_id));
        insert into forebay.waiter (name, key, job_id, group_id, step, step_key, since, until)
        values (v_wait ->> 'name', v_wait ->> 'key', v_job_id, p_group_id, v_wait ->> 'step', v_wait ->> 'step_key', v_now, v_until)
        on conflict (name, key) do nothing;
        if not found then
            select w.job_id into v_holder from forebay.waiter w where w.name = v_wait ->> 'name' and w.key = v_wait ->> 'key';
            insert into forebay.step (job_id, group_id, at, no, kind, name, key, value)
            values (v_job_id, p_group_id, v_now, forebay._next_step(v_job_id, p_group_id), 'x', v_wait ->> 'step', v_wait ->> 'step_key',
                    to_jsonb(v_holder));
            return null;
        end if;
        perform forebay._wake_flows_later(jsonb_build_object('name', v_wait -> 'name', 'key', v_wait -> 'key'));
    elsif p_flow ? 'gather' then
        perform forebay._wake_flows_later(jsonb_build_object('gather', p_flow -> 'gather', 'exact', true));
    end if;
    return coalesce(v_until, v_now + interval '100 years');
end
$$;


-- A flow leaves its wait, if it has one: it has ended, was cancelled, or begins to wait anew or for something else.
--
-- Invariant "parked on this wait": a waiter of a flow that has a row that waits for its time is what this row waits for. So whatever writes
-- such a row, a retry too, calls this before. A flow that is done writes none, and its waiter counts for nothing.
create function forebay._leave_wait(p_job_id bigint, p_group_id bigint) returns void
language plpgsql volatile
-- planner: indexed
as $$
begin
    if pg_sequence_last_value('forebay.flow_seq') is not null then
        delete from forebay.waiter w where w.job_id = p_job_id and w.group_id = p_group_id;
    end if;
end
$$;


-- The number of the next checkpoint of a job. What ends a wait is recorded under it, and never under one that was chosen before: code that was
-- deployed meanwhile may have recorded another step.
create function forebay._next_step(p_job_id bigint, p_group_id bigint) returns integer
language sql stable
as $$ select coalesce(max(s.no), 0) + 1 from forebay.step s where s.job_id = p_job_id and s.group_id = p_group_id $$;


-- Has a job ended in a group, or left the log?
create function forebay._is_over(p_job_id bigint, p_group_id bigint) returns boolean
language sql stable
as $$
    select not exists (
        select from forebay.job(p_job_id) j
        where j.group_name is not distinct from forebay._group_name(p_group_id) and j.state not in ('done', 'cancelled', 'expired', 'dead'))
$$;


-- Write a wake row: the next promotion looks whether a flow may continue. p_what: `name` and `key` of a signal, or `gather`, with `ended`,
-- the number of its children that ended in this transaction, or `exact`, to count them. Those of cancellations: see forebay._wake_cancelled().
-- p_at: not before this time; null: now.
create function forebay._wake_flows_later(p_what jsonb, p_at timestamptz default null) returns void
language sql volatile
as $$
    insert into forebay.deferred (run_at, lane, enqueued_at, job_id, kind, args)
    values (coalesce(p_at, forebay._now()), 0, forebay._now(), forebay._flow_mark(), '', p_what);
    select forebay._announce_due(coalesce(p_at, forebay._now()))
$$;


-- What wake rows of flows have for a job's id.
create function forebay._flow_mark() returns bigint
language sql immutable
as $$ select -4611686018427387904::bigint $$;


-- Wake rows were promoted: let the flows continue for which what they wait for is there.
--
-- Invariant "woken once": the checkpoint of the signal, the end of the wait and the new row of the job are one commit.
-- Locks: the promotion lock, which the caller has; rows of waiters and signals (skips locked ones: an attempt of the flow ends the wait).
create function forebay._wake_flows(p_what jsonb[]) returns integer
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_jobs   bigint[] := '{}';
    v_groups bigint[] := '{}';
    v_signal record;
    v_gather record;
    v_ended  bigint;
begin
    -- First, so that a cancellation that came before a signal counts.
    perform forebay._wake_cancelled(p_what);
    for v_signal in
        select distinct w ->> 'name' as name, w ->> 'key' as key from unnest(p_what) w where w ? 'name' order by 1, 2
    loop
        with due as materialized (
            select w.job_id, w.group_id, w.step, w.step_key, w.name, w.key, s.payload
            from forebay.waiter w join forebay.signal s on s.name = w.name and s.key = w.key
            where w.name = v_signal.name and w.key = v_signal.key
              and forebay._parked_row(w.job_id, w.group_id) is not null  -- Else an attempt of it decides, or it has ended.
            for update of w, s skip locked
        ), waiter as (
            delete from forebay.waiter w using due d where w.name = d.name and w.key = d.key
        ), signal as (
            delete from forebay.signal s using due d where s.name = d.name and s.key = d.key
        ), step as (
            insert into forebay.step (job_id, group_id, at, no, kind, name, key, value)
            select d.job_id, d.group_id, forebay._now(), forebay._next_step(d.job_id, d.group_id), 'w', d.step, d.step_key, d.payload from due d
        )
        select d.job_id, d.group_id into v_gather from due d;
        if found then
            v_jobs := v_jobs || v_gather.job_id;
            v_groups := v_groups || v_gather.group_id;
        end if;
    end loop;
    for v_gather in
        select g.gather_id, g.job_id, g.group_id, g.children, n.ended, n.is_exact, coalesce(c.no, 0) as no, coalesce(c.ended, 0) as before
        from (select (w ->> 'gather')::bigint as gather_id, sum(coalesce((w ->> 'ended')::bigint, 0)) as ended, bool_or(w ? 'exact') as is_exact
              from unnest(p_what) w where w ? 'gather' group by 1) n
        join forebay.gather g on g.gather_id = n.gather_id
        left join lateral (select i.no, i.ended from forebay.gather_count i where i.gather_id = g.gather_id order by i.no desc limit 1) c on true
        order by g.gather_id
    loop
        v_ended := v_gather.before + v_gather.ended;
        if v_gather.is_exact or v_ended >= v_gather.children then
            v_ended := forebay._ended_children(v_gather.gather_id);
        end if;
        insert into forebay.gather_count (gather_id, no, ended) values (v_gather.gather_id, v_gather.no + 1, v_ended);
        if v_ended >= v_gather.children then
            perform forebay._redrive_parent(v_gather.gather_id);
            v_jobs := v_jobs || v_gather.job_id;
            v_groups := v_groups || v_gather.group_id;
        end if;
    end loop;
    if v_jobs = '{}' then
        return 0;
    end if;
    return cardinality(forebay._move_deferred_rows('retry', '{}', v_jobs, array(
        select forebay._parked_row(u.job_id, u.group_id) from unnest(v_jobs, v_groups) u (job_id, group_id))));
end
$$;


-- The row of a job in a group that waits for its time and was not promoted; null: none.
create function forebay._parked_row(p_job_id bigint, p_group_id bigint) returns bigint
language sql stable
-- planner: indexed
as $$
    select d.deferred_id
    from (select i.* from forebay.deferred i where i.job_id = p_job_id offset 0) d
    cross join lateral (select i.audience from forebay.lane i where i.lane = d.lane limit 1) l
    left join lateral (select p.* from forebay.promotion p order by p.no desc limit 1) p on true
    where l.audience in (p_group_id, -p_group_id)
      and (p.no is null or (d.run_at, d.deferred_id) > (p.run_at, p.deferred_id) or not pg_visible_in_snapshot(d.xid, p.snap))
    limit 1
$$;


-- How many children of a gather have ended, now.
create function forebay._ended_children(p_gather_id bigint) returns bigint
language sql stable
as $$ select count(distinct e.nr) from forebay.gather_end e where e.gather_id = p_gather_id $$;


-- All waits of flows get a wake row, and all children are looked at: after an adoption, which deletes the rows that were not promoted.
create function forebay._wake_all_flows() returns void
language sql volatile
as $$
    select forebay._wake_flows_later(jsonb_build_object('name', w.name, 'key', w.key)) from forebay.waiter w;
    select forebay._wake_flows_later(jsonb_build_object('gather', g.gather_id, 'exact', true)) from forebay.gather g;
    select forebay._wake_flows_later(jsonb_build_object('cancel', c.job_id, 'group', c.group_id)) from forebay.flow_cancelled c;
    select forebay._wake_flows_later('{"look_at_all": []}')
$$;
