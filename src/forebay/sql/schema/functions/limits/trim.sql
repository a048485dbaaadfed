-- Delete rows of limiters behind the newest ones.
create function forebay._trim_limiters(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_group bigint := coalesce((p_after::jsonb ->> 0)::bigint, -9223372036854775808);
    v_no    bigint := coalesce((p_after::jsonb ->> 1)::bigint, -1);
    v_next  record;
    v_end   bigint;
    v_left  bigint := p_most;
    v_gone  bigint;
begin
    rows := 0;
    if pg_sequence_last_value('forebay.limiter_seq') is null then
        return;
    end if;
    while v_left > 0 loop
        select g.group_id, g.no into v_next from forebay.limiter g
        where (g.group_id, g.no) > (v_group, v_no) order by g.group_id, g.no limit 1;
        if not found then
            return;
        end if;
        v_group := v_next.group_id;
        v_end := least(v_next.no + v_left, (select g.no from forebay.limiter g where g.group_id = v_group order by g.no desc limit 1) - 10);
        v_left := v_left - 1;
        if v_next.no >= v_end then
            v_no := 9223372036854775807;
            continue;
        end if;
        delete from forebay.limiter g where g.group_id = v_group and g.no >= v_next.no and g.no < v_end;
        get diagnostics v_gone = row_count;
        rows := rows + v_gone;
        v_left := v_left - v_gone;
        v_no := v_end - 1;
    end loop;
    next := jsonb_build_array(v_group, v_no);
end
$$;
