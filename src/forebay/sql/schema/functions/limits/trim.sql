-- Delete parked rows of limit keys whose jobs have been taken, and what claims decided about keys when it is no longer needed: not the
-- newest decision about a key that says more than nothing, or about jobs that did not leave the archive.
create function forebay._trim_limit_runs(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
-- planner: in order
as $$
declare
    v_key   record;
    v_first bigint;
    v_gone  bigint;
    v_keys  integer := 0;
    v_stay  text := p_after;
    v_before text := p_after;  -- the key before
begin
    rows := 0;
    if pg_sequence_last_value('forebay.limiter_seq') is null then
        return;
    end if;
    select coalesce(min(s.lo), 0) into v_first from forebay.segment s where s.removed_at is null;
    for v_key in
        with recursive key as (
            (select t.group_id, t.limit_key, 1 as nr from forebay.limit_run t
             where (t.group_id, t.limit_key) > (coalesce((p_after::jsonb ->> 0)::bigint, -9223372036854775808), coalesce(p_after::jsonb ->> 1, ''))
             order by t.group_id, t.limit_key limit 1)
            union all
            select n.group_id, n.limit_key, k.nr + 1
            from key k, lateral (
                select t.group_id, t.limit_key from forebay.limit_run t
                where (t.group_id, t.limit_key) > (k.group_id, k.limit_key)
                order by t.group_id, t.limit_key limit 1) n
            where k.nr < p_most
        )
        select k.group_id, k.limit_key, t.no, coalesce(t.taken_up_to, 0) as taken_up_to, coalesce(t.waiting, 0) = 0 and coalesce(t.tat <= forebay._now(), true) as is_idle, t.leases || t.lease_id as leases, t.claims || t.claim_no as claims,
               -- Most keys have nothing to delete.
               exists (select from forebay.limit_parked p
                       where p.group_id = k.group_id and p.limit_key = k.limit_key and p.parked_no <= coalesce(t.taken_up_to, 0))
               or v_first > (select o.high_seq from forebay.limit_run o
                             where o.group_id = k.group_id and o.limit_key = k.limit_key order by o.no limit 1) as is_due,
               -- The newest row has the state of the key. One that took no job has no numbers, and would go before these.
               exists (select from forebay.limit_run o
                       where o.group_id = k.group_id and o.limit_key = k.limit_key and o.no < t.no and o.high_seq >= v_first) as has_older
        from key k
        cross join lateral (select * from forebay.limit_run i
                            where i.group_id = k.group_id and i.limit_key = k.limit_key order by i.no desc limit 1) t
    loop
        v_keys := v_keys + 1;
        v_stay := jsonb_build_array(v_key.group_id, v_key.limit_key);
        if not v_key.is_due and v_keys + rows < p_most then
            v_before := v_stay;
            continue;
        end if;
        with parked as (
            delete from forebay.limit_parked p
            where p.ctid = any (array(
                select o.ctid from forebay.limit_parked o
                where o.group_id = v_key.group_id and o.limit_key = v_key.limit_key and o.parked_no <= v_key.taken_up_to
                order by o.parked_no limit p_most))
            returning 1
        ), runs as (
            delete from forebay.limit_run t
            where t.ctid = any (array(
                select o.ctid from forebay.limit_run o
                where o.group_id = v_key.group_id and o.limit_key = v_key.limit_key and o.high_seq < v_first
                  and (o.no < v_key.no
                       or v_key.is_idle and not v_key.has_older and not exists (
                           select from unnest(v_key.leases, v_key.claims) f (lease_id, claim_no)
                           join forebay.lease e on e.lease_id = f.lease_id and e.closed_at is null
                           join forebay.batch b on b.lease_id = f.lease_id and b.claim_no = f.claim_no
                           where b.high_seq >= v_first))
                order by o.no limit p_most))
            returning 1
        )
        select (select count(*) from parked) + (select count(*) from runs) into v_gone;
        rows := rows + v_gone;
        if v_gone >= p_most then  -- The key may have more.
            next := coalesce(v_before, '[]');
            return;
        end if;
        v_before := v_stay;
        if v_keys + rows >= p_most then
            next := v_stay;
            return;
        end if;
    end loop;
end
$$;


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
