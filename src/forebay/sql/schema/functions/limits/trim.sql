-- Delete rows of limiters behind the newest ones, at most the p_back next older of each, or all; returns their number.
create function forebay._trim_limiters(p_back bigint) returns bigint
language plpgsql volatile
as $$
declare
    v_group record;
    v_rows  bigint;
    v_total bigint := 0;
begin
    if pg_sequence_last_value('forebay.limiter_seq') is null then
        return 0;
    end if;
    for v_group in
        select n.group_id, n.no from forebay.queue_group q,
               lateral (select g.group_id, g.no from forebay.limiter g where g.group_id = q.group_id order by g.no desc limit 1) n
    loop
        delete from forebay.limiter g
        where g.group_id = v_group.group_id and g.no < v_group.no - 10 and g.no >= coalesce(v_group.no - p_back, 0);
        get diagnostics v_rows = row_count;
        v_total := v_total + v_rows;
    end loop;
    return v_total;
end
$$;
