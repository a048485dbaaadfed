-- Delete the checkpoints, waits and gathers of jobs that have no row any more, and signals that no flow took in 30 days;
-- also what was noted of steps that code did not ask for, as long ago.
--
-- A job whose first segment is in use is passed over with all later ones, so a pass visits the flows that are older than the log. Those
-- that wait stay; and those that died, until they are redriven or their dead letter goes.
create function forebay._trim_flows(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
-- planner: in order
as $$
declare
    v_first constant bigint := (select coalesce(min(s.lo), 0) from forebay.segment s where s.removed_at is null);
    v_job   bigint := coalesce((p_after::jsonb ->> 0)::bigint, 0);
    v_seen  integer := 0;
    v_gone  bigint;
begin
    delete from forebay.signal s
    where s.ctid = any (array(select i.ctid from forebay.signal i where i.sent_at < forebay._now() - interval '30 days' order by i.sent_at limit p_most));
    get diagnostics rows = row_count;
    delete from forebay.unasked_step u where u.noted_at < forebay._now() - interval '30 days';
    while v_seen < p_most loop
        v_job := (select s.job_id from forebay.step s where s.job_id > v_job order by s.job_id limit 1);
        exit when v_job is null or v_job >= v_first;
        v_seen := v_seen + 1;
        continue when exists (select from forebay.deferred d where d.job_id = v_job)
            or exists (select from forebay.dead_letter d where d.job_id = v_job and d.redriven_at is null)
            or exists (select from forebay._rows_of(v_job));
        delete from forebay.step s where s.job_id = v_job;
        get diagnostics v_gone = row_count;
        v_seen := v_seen + v_gone;
        rows := rows + v_gone;
        delete from forebay.waiter w where w.job_id = v_job;
        delete from forebay.flow_cancelled c where c.job_id = v_job;
        perform forebay._delete_gathers(array(select g.gather_id from forebay.gather g where g.job_id = v_job));
    end loop;
    next := case when v_job < v_first then jsonb_build_array(v_job) end;
end
$$;


-- Delete gathers, with what is known of their children.
create function forebay._delete_gathers(p_ids bigint[]) returns void
language sql volatile
as $$
    delete from forebay.gather_end e where e.gather_id = any (p_ids);
    delete from forebay.gather_count c where c.gather_id = any (p_ids);
    delete from forebay.gather_part p where p.gather_id = any (p_ids);
    delete from forebay.gather g where g.gather_id = any (p_ids)
$$;
