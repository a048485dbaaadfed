-- The unfinished jobs that match a filter, and what an act would mean for each: one row for each group, and for each row of the log.
--
-- place: l waiting in the log, or parked for its limit key, p parked for its ordering key, d in deferred, h in the hands of a worker.
-- seq is the number in the log,
-- or that in deferred. group_id is null in deferred, and where the queue has no group. answer:
--
--   changed         the act takes the job: cancelled before it starts, or moved
--   requested       a worker has it, and its handler is requested to stop
--   running         a worker has it; only a cancellation concerns it, and no truncation
--   unchanged       it is ready already, has this time or this priority already
--   ordering key    it would lose its place among the jobs of its key
--   expires before  it would expire before it may start
--
-- Jobs that were cancelled, replaced or expired by the sweep are not among them, nor are rows that were moved. So an act that is
-- repeated finds what is left. Reads every waiting job of the queues.
--
-- Parameters: p_most, with p_taken, the maximum number of rows of each place; p_taken, only jobs that the act takes. A truncation has the option
--   snapshot: only rows that it shows, with own also those of the transaction itself; and takes all deferred jobs, before a promotion gives
--   them rows that the snapshot does not show. A change with a token has it, too; with until, later rows of jobs below this number pass.
create function forebay._matching(p_act text, p_filter jsonb, p_options jsonb, p_taken boolean, p_most bigint)
returns table (job_id bigint, group_id bigint, place "char", lane bigint, xid xid8, seq bigint, state text, enqueued_at timestamptz, answer text)
language plpgsql stable
-- planner: short
as $$
#variable_conflict use_column
declare
    v_cancels   constant boolean := p_act in ('cancel', 'truncate');
    v_run_at    constant timestamptz := p_options ->> 'run_at';
    v_state     constant text := p_filter ->> 'state';
    v_limit     constant text := coalesce(' limit ' || p_most, '');
    v_waiting   text;     -- what the act means for a waiting job
    v_untouched text := 'true';
    v_deferred  text;
    v_wanted    text;
    v_position  forebay.promotion;
    v_cursors   forebay._cursor[];
    v_groups    bigint[];
    v_priorities integer[];
begin
    v_waiting := case
        when v_cancels then '''changed'''
        when p_act = 'retry' then '''unchanged'''
        when p_act = 'reschedule' then format(
            'case when j.is_keyed then ''ordering key'' when j.expires_at <= %1$L then ''expires before'' when %1$L <= forebay._now() then ''unchanged'' else ''changed'' end',
            v_run_at)
        else format('case when j.is_keyed then ''ordering key'' when j.priority = %L then ''unchanged'' else ''changed'' end', (p_options ->> 'priority')::integer) end;
    v_deferred := case
        when v_cancels or p_act = 'retry' then '''changed'''
        when p_act = 'reschedule' then format(
            'case when j.expires_at <= %1$L then ''expires before'' when j.run_at = %1$L then ''unchanged'' else ''changed'' end', v_run_at)
        else v_waiting end;
    if pg_sequence_last_value('forebay.tombstone_seq') is not null then
        v_untouched :=
            'not exists (select from forebay.tombstone t
                         where t.job_id = j.job_id and (t.group_id is null or t.group_id = j.group_id)
                           and (t.reason in (''c'', ''r'', ''e'') or t.reason = ''m'' and j.seq <= t.up_to))';
    end if;
    if p_act = 'cancel' and not coalesce((p_options ->> 'now')::boolean, false) and pg_sequence_last_value('forebay.flow_seq') is not null then
        -- Flows that continue to compensate.
        v_untouched := v_untouched || ' and not exists (select from forebay.flow_cancelled c
                                                         where c.job_id = j.job_id and (c.group_id = j.group_id or j.group_id is null))';
    end if;
    v_wanted := format('where %s and %s', forebay._filter_sql(p_filter), v_untouched);
    if p_options ? 'snapshot' then
        v_wanted := v_wanted || format(
            case when p_options ? 'own' then ' and (pg_visible_in_snapshot(j.xid, %1$L) or j.xid = pg_current_xact_id_if_assigned())'
                 when p_options ? 'until' then ' and (pg_visible_in_snapshot(j.xid, %1$L) or j.is_later and j.job_id < %2$L)'
                 else ' and pg_visible_in_snapshot(j.xid, %1$L)' end,
            p_options ->> 'snapshot', p_options ->> 'until');
    end if;

    select array_agg(r.cursor order by r.nr), array_agg(r.group_id order by r.nr), array_agg(r.priority order by r.nr)
    into v_cursors, v_groups, v_priorities
    from (
        select i.nr, g.group_id, i.priority,
               row(i.nr, i.lane, case i.audience when 0 then coalesce(g.start_after, '1:1:') else '1:1:' end, b.snap_from, b.snap_to,
                   s.lo, s.hi, b.pos_xid, b.pos_seq)::forebay._cursor as cursor
        from (select row_number() over (order by l.priority, l.lane, g.group_id) as nr, l.lane, l.priority, l.audience, g.group_id
              from (select distinct i.lane, i.queue, i.priority, i.audience from forebay.lane i
                    where p_filter ->> 'queue' is null or i.queue = p_filter ->> 'queue') l
              left join forebay.queue_group g on g.queue = l.queue
              where l.audience = 0 or g.group_id = abs(l.audience)) i
        left join forebay.queue_group g on g.group_id = i.group_id
        left join lateral (select b.* from forebay.batch b where b.group_id = i.group_id and b.lane = i.lane order by b.no desc limit 1) b on true
        left join forebay.segment s on s.segment_id = b.pos_segment
        where g.closing_at is null) r;

    if v_cursors is not null and coalesce(v_state, 'ready') = 'ready' and not (p_taken and p_act = 'retry') then
        return query execute format(
            'select j.job_id, j.group_id, ''l''::"char", j.lane, j.xid, j.seq, ''ready'', j.enqueued_at, j.answer
             from (select j.*, %s as answer
                   from (select coalesce(u.job_id, u.seq) as job_id, ($2)[u.nr] as group_id, ($3)[u.nr] as priority, u.lane, u.xid, u.seq, u.kind, u.tag,
                                u.correlation_id, u.ordering_key, u.unique_key, u.limit_key, u.headers, u.enqueued_at, u.job_id is not null as is_later, u.ordering_key is not null as is_keyed,
                                coalesce(u.expires_at, u.enqueued_at + interval ''30 days'') as expires_at
                         from (%s) u) j
                   %s) j
             where not $4 or j.answer = ''changed''%s',
            v_waiting,
            forebay._unread_sql(v_cursors, 'l.lane, l.xid, l.seq, l.job_id, l.kind, l.tag, l.correlation_id, l.ordering_key, l.unique_key, l.limit_key, l.headers, l.enqueued_at, l.expires_at'),
            v_wanted, v_limit) using v_cursors, v_groups, v_priorities, p_taken;
    end if;
    if coalesce(v_state, 'ready') = 'ready' and not (p_taken and p_act = 'retry') then
        return query execute format(
            'select j.job_id, j.group_id, case when j.is_keyed then ''p'' else ''l'' end::"char", j.lane, j.xid, j.seq, ''ready'', j.enqueued_at, j.answer
             from (select j.*, %s as answer
                   from (select coalesce((r.job).job_id, (r.job).seq) as job_id, r.group_id, (r.job).lane, (r.job).xid, (r.job).seq, (r.job).kind, (r.job).tag,
                                (r.job).correlation_id, (r.job).ordering_key, (r.job).unique_key, (r.job).limit_key, (r.job).headers, (r.job).enqueued_at,
                                (r.job).job_id is not null as is_later, (r.job).ordering_key is not null as is_keyed,
                                coalesce((r.job).expires_at, (r.job).enqueued_at + interval ''30 days'') as expires_at,
                                (select l.priority from forebay.lane l where l.lane = (r.job).lane limit 1) as priority
                         from forebay._parked_jobs($1) r) j
                   %s) j
             where not $2 or j.answer = ''changed''%s', v_waiting, v_wanted, v_limit)
            using p_filter ->> 'queue', p_taken;
    end if;
    if coalesce(v_state, 'scheduled') in ('scheduled', 'retrying') then
        select p.* into v_position from forebay.promotion p order by p.no desc limit 1;
        return query execute format(
            'select j.job_id, null::bigint, ''d''::"char", j.lane, j.xid, j.seq, j.state, j.enqueued_at, j.answer
             from (select j.*, %s as answer
                   from (select d.job_id, nullif(abs(l.audience), 0) as group_id, l.priority, d.lane, d.xid, d.deferred_id as seq, d.kind, d.tag, d.correlation_id,
                                d.ordering_key, d.unique_key, d.limit_key, d.headers, d.enqueued_at, d.ordering_key is not null as is_keyed, d.run_at,
                                coalesce(d.attempt, 0) > 0 or coalesce(d.pauses, 0) > 0 as is_later,
                                coalesce(d.expires_at, d.enqueued_at + interval ''30 days'') as expires_at,
                                forebay._state_of_deferred(d.attempt, d.pauses) as state
                         from (select distinct i.lane, i.queue, i.priority, i.audience from forebay.lane i) l
                         join forebay.deferred d on d.lane = l.lane and d.kind <> ''''
                         where ($1 is null or l.queue = $1)
                           and not ($2 is not null and pg_visible_in_snapshot(d.xid, $2) and (d.run_at, d.deferred_id) <= ($3, $4))) j
                   %s) j
             where ($5 is null or j.state = $5) and (not $6 or j.answer = ''changed'')%s',
            v_deferred, replace(v_wanted, 'j.seq <= t.up_to', 'false'), case when p_act <> 'truncate' then v_limit end)
            using p_filter ->> 'queue', v_position.snap, v_position.run_at, v_position.deferred_id, v_state, p_taken;
    end if;
    if coalesce(v_state, 'claimed') in ('claimed', 'running') and not (p_taken and p_act <> 'cancel') then
        return query execute format(
            'select j.job_id, j.group_id, ''h''::"char", j.lane, j.xid, j.seq, j.state, j.enqueued_at, $3
             from (select coalesce(r.job_id, r.seq) as job_id, b.group_id, r.lane, r.xid, r.seq, r.kind, r.tag, r.correlation_id, r.ordering_key, r.unique_key, r.limit_key,
                          r.headers, r.enqueued_at, r.job_id is not null as is_later,
                          case when coalesce(r.job_id, r.seq) = any (h.running_jobs) and h.heartbeat_at >= b.claimed_at then ''running'' else ''claimed'' end as state
                   from forebay.lease e
                   join lateral (select i.floor from forebay.batch i where i.lease_id = e.lease_id order by i.claim_no desc limit 1) f on true
                   left join lateral (select i.heartbeat_at, i.running_jobs from forebay.heartbeat i
                                      where i.lease_id = e.lease_id order by i.heartbeat_at desc limit 1) h on true
                   join forebay.batch b on b.lease_id = e.lease_id and b.claim_no >= f.floor
                   join lateral unnest(b.seqs) with ordinality u (seq, nr) on not exists (
                       select from forebay.settlement s
                       where s.lease_id = b.lease_id and s.claim_no = b.claim_no and (s.offsets is null or u.nr::smallint = any (s.offsets)))
                   join lateral (select i.* from forebay._row(coalesce(b.lanes[u.nr], b.lane), coalesce(b.xids[u.nr], b.xids[1]), u.seq) i
                                 where exists (select from forebay.lane l where l.lane = i.lane and ($1 is null or l.queue = $1))) r on true
                   where e.closed_at is null
                     -- Claimed before the dry run of jobs that workers have.
                     and ($4 is null or $2 is null or pg_snapshot_xmax(coalesce(b.snap_to, b.snap_from)) < pg_snapshot_xmax($4))) j
             %s and ($2 is null or j.state = $2)%s', replace(v_wanted, 'j.seq <= t.up_to', 'false'), v_limit)
            using p_filter ->> 'queue', v_state, case p_act when 'cancel' then 'requested' else 'running' end,
                (p_options ->> 'snapshot')::pg_snapshot;
    end if;
end
$$;
