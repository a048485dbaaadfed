-- All children of a gather have ended: if the flow has died of them, and redriven ones have ended well since, redrive it, too.
--
-- It never waits: the promotion lock stands before all others. What another session holds is tried again with the next promotion.
-- Runs of subjects are left to their operators, since a later run may have taken their place.
create function forebay._redrive_parent(p_gather_id bigint) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    d forebay.dead_letter;
begin
    select i.* into d
    from forebay.gather g
    cross join lateral (select l.* from forebay.dead_letter l where l.job_id = g.job_id offset 0) i
    where g.gather_id = p_gather_id and i.group_id = g.group_id and i.redriven_at is null and i.reason = 'permanent'
      and not coalesce(i.headers ? 'forebay-subject', false)
      -- It did nothing behind the gather.
      and not exists (select from forebay.step s where s.job_id = g.job_id and s.group_id = g.group_id and s.no > g.no)
    order by i.dead_id desc limit 1;
    if not found or (
           select bool_or(e.outcome <> 'd')
           from (select distinct on (i.nr) i.outcome from forebay.gather_end i where i.gather_id = p_gather_id order by i.nr, i.job_id desc) e) then
        return;
    end if;
    if not exists (select from forebay.queue_group g where g.group_id = d.group_id and g.closing_at is null) then
        return;
    end if;
    perform from forebay.dead_letter i where i.dead_id = d.dead_id and i.redriven_at is null for update skip locked;
    if found then
        perform from forebay.queue_group g where g.group_id = d.group_id and g.closing_at is null for share skip locked;
    end if;
    if not found then
        perform forebay._wake_flows_later(jsonb_build_object('gather', p_gather_id, 'exact', true));
        return;
    end if;
    d := forebay._redrive(d.dead_id);
    perform forebay._record_event('dead.redrive', d.queue, forebay._group_name(d.group_id), d.kind, d.dead_id,
                                  p_new => jsonb_build_object('job_id', d.redriven_as, 'because', 'its children have ended well'), p_count => 1);
end
$$;
