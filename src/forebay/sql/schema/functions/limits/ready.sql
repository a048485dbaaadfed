-- Of some groups those whose limiter lets nothing through now.
create function forebay._shut_limiters(p_group_ids bigint[]) returns bigint[]
language plpgsql volatile
as $$
declare
    v_group record;
    v       forebay._limiter_view;
    v_shut  bigint[] := '{}';
begin
    for v_group in select g.group_id, g.queue from forebay.queue_group g where g.group_id = any (p_group_ids) loop
        v := forebay._read_limiter(v_group.group_id, v_group.queue);
        if v.free_slots <= 0 and not v.is_back then
            v_shut := v_shut || v_group.group_id;
        end if;
    end loop;
    return v_shut;
end
$$;
