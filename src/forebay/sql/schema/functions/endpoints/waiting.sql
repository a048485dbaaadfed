-- How many deliveries of an endpoint are parked, and since when the first of them waits. No job is counted: claims keep the number.
create function forebay._endpoint_waiting(p_name text, out waiting bigint, out since timestamptz)
language plpgsql stable
-- planner: in order
as $$
declare
    v_run forebay.limit_run;
    v_row forebay.limit_parked;
begin
    select i.* into v_run
    from forebay.queue_group g
    cross join lateral (select * from forebay.limit_run i
                        where i.group_id = g.group_id and i.limit_key = p_name order by i.no desc limit 1) i
    where g.queue = 'forebay.deliver' and g.name = 'default';
    waiting := coalesce(v_run.waiting, 0);
    if waiting > 0 then
        select p.* into v_row from forebay.limit_parked p
        where p.group_id = v_run.group_id and p.limit_key = p_name and p.parked_no > coalesce(v_run.taken_up_to, 0)
        order by p.parked_no limit 1;
        since := (forebay._row(v_row.lane, v_row.xid, v_row.seq)).enqueued_at;
    end if;
end
$$;
