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
        where forebay._follows_children(i::forebay.dead_letter, v_flow)
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


-- Is a dead letter redriven when the children of this gather have ended well? It did nothing behind the gather, but recorded how that ended.
create function forebay._follows_children(p_dead forebay.dead_letter, p_gather forebay.gather) returns boolean
language sql stable
as $$
    select p_dead.job_id = p_gather.job_id and p_gather.group_id in (0, p_dead.group_id) and p_dead.redriven_at is null and p_dead.reason = 'permanent'
       and not coalesce(p_dead.headers ? 'forebay-subject', false)
       and not exists (select from forebay.step s where s.job_id = p_dead.job_id and s.group_id = p_dead.group_id
                                                    and s.no > case p_gather.group_id when 0 then 0 else p_gather.no end
                                                    and not (s.kind = 'd' and s.value ->> 'gather' = p_gather.gather_id::text))
$$;


-- The child that a dead parent needs first, among the first 200 that did not end well: one that can not be redriven, or else one that was not;
-- null: the parent does not follow its children.
create function forebay._died_of(p_job_id bigint, p_group text) returns jsonb
language sql stable
-- planner: indexed
as $$
    select jsonb_build_object('job_id', e.job_id, 'kind', c.kind, 'dead_id', c.dead_id, 'redriven_as', c.redriven_as, 'cause', c.cause)
    from (select i as letter from forebay.dead_letter i where i.job_id = p_job_id offset 0) l
    cross join lateral (select i.* from forebay.gather i where i.job_id = p_job_id and forebay._follows_children(l.letter, i) order by i.no desc limit 1) g
    cross join lateral (
        select n.job_id from (select distinct on (i.nr) i.job_id, i.outcome from forebay.gather_end i where i.gather_id = g.gather_id
                              order by i.nr, i.job_id desc) n
        where n.outcome <> 'd' order by n.job_id limit 200) e
    left join lateral (select i.kind, i.dead_id, i.redriven_as, i.cause from forebay.dead_letter i where i.job_id = e.job_id
                       order by i.dead_id desc limit 1) c on true
    where (l.letter).errors -> -1 ->> 'type' = 'forebay.errors.ChildrenDied' and forebay._group_name((l.letter).group_id) = p_group
    order by c.dead_id is not null, c.redriven_as is not null, e.job_id limit 1
$$;
