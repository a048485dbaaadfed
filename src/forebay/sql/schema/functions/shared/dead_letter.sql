-- The id of a cause by which dead letters are grouped: a kind with the class of an error, or with a reason. Workers compute that of an
-- exception, which has a place too; see src/forebay/policy/cause.py.
create function forebay._cause(p_kind text, p_what text) returns text
language sql immutable
as $$ select left(encode(sha256(convert_to(concat_ws(E'\n', p_kind, p_what), 'UTF8')), 'hex'), 10) $$;


-- Write a dead letter, with the whole error history of the job in this group, and enqueue what follows; returns the dead letter's id.
-- p_holds: it holds its ordering key. p_follow_up: see forebay._follow_death().
--
-- Invariant "one end, one follow-up": every death passes this function.
create function forebay._write_dead_letter(
    p_group_id bigint, p_queue text, p_priority integer, p_row forebay.log, p_reason text, p_attempt integer,
    p_holds boolean default false, p_follow_up jsonb default null)
returns bigint
language sql volatile
as $$
    select forebay._end_subject(p_queue, p_row, 'x', null, p_reason) where p_row.headers ? 'forebay-subject';
    select forebay._end_child(p_row, 'x', p_reason) where p_row.headers ? 'forebay-parent';
    with letter as (
        insert into forebay.dead_letter (
            group_id, job_id, seq, reason, died_at, queue, priority, enqueued_at, expires_at, attempt,
            unique_key, args, headers, {job but args, headers}, cause, place, holds_key, errors)
        select
            p_group_id, coalesce(p_row.job_id, p_row.seq), p_row.seq, p_reason, forebay._now(), p_queue, p_priority,
            p_row.enqueued_at, coalesce(p_row.expires_at, p_row.enqueued_at + interval '30 days'), p_attempt,
            p_row.unique_key, case when v.event is null then p_row.args else p_row.args || jsonb_build_object('payload', v.event -> 'payload') end,
            case when v.event is null then p_row.headers else nullif(v.event -> 'headers', 'null') end,
            {job of p_row but args, headers},
            coalesce(last.cause, forebay._cause(p_row.kind, coalesce(last.error_type, p_reason))), last.place,
            p_holds and forebay._begin_hold(p_group_id, p_queue, p_row), coalesce((select jsonb_agg(jsonb_build_object(
                                 'attempt', f.attempt, 'failed_at', f.failed_at, 'outcome', f.outcome,
                                 'type', f.error_type, 'message', f.message, 'traceback', f.traceback, 'worker', f.worker,
                                 'max_attempts', f.max_attempts)
                             order by f.failed_at)
                      from forebay.failure f
                      where f.job_id = coalesce(p_row.job_id, p_row.seq) and f.group_id = p_group_id
                        and f.enqueued_at = p_row.enqueued_at), '[]')
        -- A delivery refers to the payload of its event; the letter contains it.
        from (select case when p_queue = 'forebay.deliver' and not p_row.args ? 'payload'
                          then forebay._event_of_delivery(p_row.args) end as event offset 0) v
        left join lateral (
            select f.cause, f.error_type, f.place
            from (select i.* from forebay.failure i  -- Not through the index by time.
                  where i.job_id = coalesce(p_row.job_id, p_row.seq) and i.group_id = p_group_id and i.enqueued_at = p_row.enqueued_at
                  offset 0) f
            order by f.failed_at desc limit 1) last on p_reason in ('exhausted', 'permanent')
        returning dead_id, errors)
    select case when coalesce(jsonb_typeof(p_follow_up) = 'null', pg_sequence_last_value('forebay.on_dead_seq') is null) then l.dead_id
                else forebay._follow_death(l.dead_id, p_follow_up, p_row, p_group_id, p_queue, p_reason, p_attempt, l.errors) end
    from letter l
$$;


-- Tell the caller which jobs this call itself made dead letters: a message INFO beside the answer, which the server always sends to
-- the client, and whose detail is JSON: total, and the first 20 jobs. Nothing runs for it where nothing died. And tell listeners which
-- of them expired; deaths for other reasons are settlements, which tell it themselves.
--
-- Invariant "told after the commit": a message of a call that fails must be ignored, since its dead letters were rolled back.
create function forebay._report_deaths(p_dead_ids bigint[]) returns void
language plpgsql volatile
as $$
begin
    if pg_sequence_last_value('forebay.notices_seq') is not null then
        perform forebay._announce_jobs(e.queue, forebay._group_name(e.group_id), 'expired', e.jobs)
        from (select d.queue, d.group_id, array_agg(d.job_id order by d.job_id) as jobs
              from unnest(p_dead_ids) i (dead_id)
              cross join lateral (select l.* from forebay.dead_letter l where l.dead_id = i.dead_id offset 0) d
              where d.reason = 'expired' group by d.queue, d.group_id) e;
    end if;
    raise info using message = 'forebay: dead letters', detail = jsonb_build_object(
        'total', cardinality(p_dead_ids),
        'jobs', (select jsonb_agg(jsonb_build_object(
                            'job_id', d.job_id, 'kind', d.kind, 'queue', d.queue, 'reason', d.reason, 'attempt', d.attempt,
                            'max_attempts', d.max_attempts, 'tag', d.tag, 'correlation_id', d.correlation_id, 'cause', d.cause,
                            'endpoint', case when d.queue = 'forebay.deliver' then d.limit_key end)
                        order by i.nr)
                 from unnest(p_dead_ids[:20]) with ordinality i (dead_id, nr)
                 cross join lateral (select l.* from forebay.dead_letter l where l.dead_id = i.dead_id offset 0) d));
end
$$;


-- Record that a dead letter begins to hold its key, for claims and operators; true.
create function forebay._begin_hold(p_group_id bigint, p_queue text, p_row forebay.log) returns boolean
language plpgsql volatile
as $$
begin
    if pg_sequence_last_value('forebay.hold_seq') is null then
        perform nextval('forebay.hold_seq');
    end if;
    perform forebay._record_event('keys.hold', p_queue, forebay._group_name(p_group_id), p_row.kind, coalesce(p_row.job_id, p_row.seq),
                                  p_new => jsonb_build_object('ordering_key', p_row.ordering_key));
    return true;
end
$$;


-- End what dead letters hold: the next jobs of their keys may run. Claims look at the keys again.
create function forebay._end_holds(p_dead_ids bigint[]) returns void
language plpgsql volatile
as $$
declare
    v_key record;
begin
    for v_key in
        with ended as (
            update forebay.dead_letter d set holds_key = false
            where d.dead_id = any (p_dead_ids) and d.holds_key returning d.queue, d.priority, d.group_id, d.ordering_key)
        select e.queue, e.priority, e.group_id, array_agg(distinct e.ordering_key) as keys from ended e group by 1, 2, 3 order by 1, 2, 3
    loop
        perform forebay._announce_keys(v_key.queue, v_key.priority, v_key.group_id, v_key.keys);
        perform forebay._notify(v_key.queue);
    end loop;
end
$$;
