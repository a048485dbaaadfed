-- Give a job that is made from a dead letter the checkpoints of the dead one, up to number p_before, exclusive; null: all, but the last ones
-- that tell of failures, since these are tried again.
create function forebay._copy_steps(p_from bigint, p_from_group bigint, p_to bigint, p_to_group bigint, p_before integer) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_before integer := p_before;
begin
    if pg_sequence_last_value('forebay.flow_seq') is null then
        return;
    end if;
    if v_before is null then
        select max(s.no) + 1 into v_before from forebay.step s
        where s.job_id = p_from and s.group_id = p_from_group and s.kind not in ('f', 't', 'x');
    end if;
    insert into forebay.step (job_id, group_id, at, no, kind, name, key, value)
    select p_to, p_to_group, s.at, s.no, s.kind, s.name, s.key, s.value
    from forebay.step s where s.job_id = p_from and s.group_id = p_from_group and s.no < v_before
    order by s.no;
    -- Its children report to the gather, which tells the new job.
    update forebay.gather g set job_id = p_to, group_id = p_to_group
    where g.job_id = p_from and g.group_id = p_from_group and g.no < v_before;
    -- What a callback waited for: its rows name no group.
    insert into forebay.step (job_id, group_id, at, no, kind, name, key, value)
    select p_to, 0, s.at, s.no, s.kind, s.name, s.key, s.value from forebay.step s where s.job_id = p_from and s.group_id = 0;
    if found then
        update forebay.gather g set job_id = p_to where g.job_id = p_from and g.group_id = 0;
    end if;
end
$$;
