-- All children of a gather have ended: if the flow has died of them, and redriven ones have ended well since, redrive it, too.
--
-- It never waits: the promotion lock stands before all others. What another session holds is tried again with the next promotion.
-- Runs of subjects are left to their operators, since a later run may have taken their place.
create function forebay._redrive_parent(p_gather_id bigint) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_flow forebay.gather;
    d      forebay.dead_letter;
begin
    select g.* into v_flow from forebay.gather g where g.gather_id = p_gather_id;
    if not exists (select from (select l.redriven_at from forebay.dead_letter l where l.job_id = v_flow.job_id offset 0) l where l.redriven_at is null)
       or (select bool_or(e.outcome <> 'd')
           from (select distinct on (i.nr) i.outcome from forebay.gather_end i where i.gather_id = p_gather_id order by i.nr, i.job_id desc) e) then
        return;
    end if;
    for d in
        select distinct on (i.group_id) i.*
        from (select l.* from forebay.dead_letter l where l.job_id = v_flow.job_id offset 0) i
        where v_flow.group_id in (0, i.group_id) and i.redriven_at is null and i.reason = 'permanent'
          and not coalesce(i.headers ? 'forebay-subject', false)
          -- It did nothing behind the gather, but recorded how that ended.
          and not exists (select from forebay.step s where s.job_id = i.job_id and s.group_id = i.group_id
                                                       and s.no > case v_flow.group_id when 0 then 0 else v_flow.no end
                                                       and not (s.kind = 'd' and s.value ->> 'gather' = p_gather_id::text))
          and exists (select from forebay.queue_group g where g.group_id = i.group_id and g.closing_at is null)
        order by i.group_id, i.dead_id desc
    loop
        perform from forebay.dead_letter i where i.dead_id = d.dead_id and i.redriven_at is null for update skip locked;
        if found then
            perform from forebay.queue_group g where g.group_id = d.group_id and g.closing_at is null for share skip locked;
        end if;
        if not found then
            perform forebay._wake_flows_later(jsonb_build_object('gather', p_gather_id, 'exact', true));
            continue;
        end if;
        d := forebay._redrive(d.dead_id);
        perform forebay._record_event('dead.redrive', d.queue, forebay._group_name(d.group_id), d.kind, d.dead_id,
                                      p_new => jsonb_build_object('job_id', d.redriven_as, 'because', 'its children have ended well'), p_count => 1);
    end loop;
end
$$;
