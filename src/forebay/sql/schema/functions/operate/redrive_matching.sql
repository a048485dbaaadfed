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
--
-- Locks: the dead letters' rows; rows that another session is redriving are skipped.
create function forebay.redrive_matching(
    queue text default null, kind text default null, reason text default null, tag text default null,
    group_name text default null, died_after timestamptz default null, died_before timestamptz default null,
    most integer default null, job_id bigint default null,
    cause text default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_id    bigint;
    v_count bigint := 0;
begin
    for v_id in
        select d.dead_id
        from forebay.dead_letter d
        join forebay.queue_group g on g.group_id = d.group_id
        where d.redriven_at is null and g.closing_at is null
          and (redrive_matching.queue is null or d.queue = redrive_matching.queue)
          and (redrive_matching.kind is null or d.kind = redrive_matching.kind)
          and (redrive_matching.reason is null or d.reason = redrive_matching.reason)
          and (redrive_matching.tag is null or d.tag = redrive_matching.tag)
          and (redrive_matching.group_name is null or g.name = redrive_matching.group_name)
          and (redrive_matching.cause is null or d.cause = redrive_matching.cause)
          and (redrive_matching.job_id is null or d.job_id = redrive_matching.job_id)
          and (redrive_matching.died_after is null or d.died_at >= redrive_matching.died_after)
          and (redrive_matching.died_before is null or d.died_at < redrive_matching.died_before)
        order by d.enqueued_at, d.job_id
        limit redrive_matching.most
        for update of d skip locked
    loop
        perform forebay._redrive(v_id);
        v_count := v_count + 1;
    end loop;
    if v_count > 0 then
        perform forebay._record_event(
            'dead.redrive', redrive_matching.queue, redrive_matching.group_name, redrive_matching.kind,
            p_new => jsonb_strip_nulls(jsonb_build_object(
                'reason', redrive_matching.reason, 'tag', redrive_matching.tag, 'died_after', redrive_matching.died_after,
                'died_before', redrive_matching.died_before, 'most', redrive_matching.most, 'job_id', redrive_matching.job_id, 'cause', redrive_matching.cause)),
            p_count => v_count);
    end if;
    return v_count;
end
$$;
