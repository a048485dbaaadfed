-- grant: operator

-- Free the ordering key that a dead letter holds, without running its job; returns whether it held
-- the key. The dead letter stays. Redriven later, its job comes behind the others of the key.
--
-- Errors: JQ015 no such dead letter, JQ016 it was redriven, and its key waits for the new job.
-- Locks: the dead letter's row.
create function forebay.skip_dead(dead_id bigint) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: in order
as $$
declare
    d forebay.dead_letter;
begin
    select i.* into d from forebay.dead_letter i where i.dead_id = skip_dead.dead_id for update;
    if not found then
        raise exception using errcode = 'JQ015',
            message = format('dead letter %s not found', coalesce(skip_dead.dead_id::text, 'null')),
            hint = 'List dead letters with forebay dead list.';
    elsif d.holds_key and d.redriven_as is not null then
        raise exception using errcode = 'JQ016',
            message = format('dead letter %s was redriven as job %s', d.dead_id, d.redriven_as),
            detail = jsonb_build_object('job_id', d.job_id, 'new_job_id', d.redriven_as),
            hint = 'Its ordering key waits for that job. To skip it, cancel it.';
    elsif not d.holds_key then
        return false;
    end if;
    perform forebay._end_holds(array[d.dead_id]);
    perform forebay._record_event('keys.skip', d.queue, forebay._group_name(d.group_id), d.kind, d.dead_id,
                                  p_new => jsonb_build_object('ordering_key', d.ordering_key));
    return true;
end
$$;
