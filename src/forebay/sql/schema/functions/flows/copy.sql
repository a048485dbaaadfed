-- Give a job that is made from a dead letter the checkpoints of the dead one, up to number p_before, exclusive; null: all, but the last ones
-- that tell of failures, since these are tried again. What was recorded behind a failure belongs to its compensation, so the failure stays; unless
-- it was a step that ran beside it.
create function forebay._copy_steps(p_from bigint, p_from_group bigint, p_to bigint, p_to_group bigint, p_before integer) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_before constant integer := coalesce(p_before, 2147483647);
    v_again  integer[] := '{}';          -- numbers of what is tried again
    v_beside jsonb := '[]';              -- what was recorded so far, from the end
    v_step   record;
begin
    if pg_sequence_last_value('forebay.flow_seq') is null then
        return;
    end if;
    if p_before is null then
        for v_step in
            select s.no, s.kind, s.name, s.key, s.value from forebay.step s where s.job_id = p_from and s.group_id = p_from_group order by s.no desc
        loop
            if v_step.kind not in ('f', 't', 'x', 'd') then
                v_beside := v_beside || jsonb_build_object('name', v_step.name, 'key', v_step.key);
                -- A failure knows at most 100 steps that ran beside it.
                exit when jsonb_array_length(v_beside) > 100;
            elsif coalesce(v_step.value -> 'beside', '[]') @> v_beside then
                -- With a wait its begin goes, too: it waits anew.
                v_again := v_again || v_step.no || array(
                    select s.no from forebay.step s
                    where s.job_id = p_from and s.group_id = p_from_group and s.kind = 'p' and s.name = v_step.name and s.key is not distinct from v_step.key);
            end if;
        end loop;
    end if;
    insert into forebay.step (job_id, group_id, at, no, kind, name, key, value)
    select p_to, p_to_group, s.at, s.no, s.kind, s.name, s.key, s.value
    from forebay.step s where s.job_id = p_from and s.group_id = p_from_group and s.no < v_before and s.no <> all (v_again)
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
