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


-- Delete counts of waiting jobs behind the newest ones, and those of groups that are gone: an enqueue that was open when its group was
-- deleted may commit one afterwards.
create function forebay._trim_counts(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_queue text := coalesce(p_after::jsonb ->> 0, '');
    v_group bigint := coalesce((p_after::jsonb ->> 1)::bigint, -9223372036854775808);
    v_next  record;
    v_left  bigint := p_most;
    v_kept  bigint;
    v_gone  bigint;
begin
    rows := 0;
    loop
        select c.queue, c.group_id, c.no into v_next from forebay.queue_count c
        where (c.queue, c.group_id) > (v_queue, v_group) order by c.queue, c.group_id, c.no desc limit 1;
        if not found then
            return;
        end if;
        -- 0 stands for the group of a queue that has none.
        v_kept := case when exists (select from forebay.queue_group g where g.queue = v_next.queue and g.group_id = v_next.group_id)
                            or v_next.group_id = 0 and not exists (select from forebay.queue_group g where g.queue = v_next.queue)
                       then v_next.no else 9223372036854775807 end;
        delete from forebay.queue_count c
        where c.ctid = any (array(
            select o.ctid from forebay.queue_count o
            where o.queue = v_next.queue and o.group_id = v_next.group_id and o.no < v_kept order by o.no desc limit v_left));
        get diagnostics v_gone = row_count;
        rows := rows + v_gone;
        if v_gone < v_left then
            v_queue := v_next.queue;
            v_group := v_next.group_id;
        end if;
        v_left := v_left - v_gone - 1;
        exit when v_left <= 0;
    end loop;
    next := jsonb_build_array(v_queue, v_group);
end
$$;
