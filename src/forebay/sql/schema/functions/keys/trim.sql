-- Delete parked rows whose jobs have been taken, and key runs that are no longer needed: not the newest of their key, or of jobs
-- that all left the archive.
--
-- A key loses its oldest runs first: the newest run that is left has its state. A run that took no job has no numbers, so it would
-- go before older ones, and the key would again wait for a job that was cancelled.
create function forebay._trim_key_runs(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_key   record;
    v_first bigint;
    v_gone  bigint;
    v_keys  integer := 0;
    v_stay  text := p_after;
begin
    rows := 0;
    if pg_sequence_last_value('forebay.key_seq') is null then
        return;
    end if;
    select coalesce(min(s.lo), 0) into v_first from forebay.segment s where s.removed_at is null;
    for v_key in
        with recursive key as (
            (select t.group_id, t.ordering_key, 1 as nr from forebay.key_run t
             where (t.group_id, t.ordering_key) > (coalesce((p_after::jsonb ->> 0)::bigint, -9223372036854775808),
                                                   coalesce(p_after::jsonb ->> 1, ''))
             order by t.group_id, t.ordering_key limit 1)
            union all
            select n.group_id, n.ordering_key, k.nr + 1
            from key k, lateral (
                select t.group_id, t.ordering_key from forebay.key_run t
                where (t.group_id, t.ordering_key) > (k.group_id, k.ordering_key)
                order by t.group_id, t.ordering_key limit 1) n
            where k.nr < p_most
        )
        -- Most keys have nothing to delete: numbers rise from key run to key run.
        select k.group_id, k.ordering_key,
               exists (select from forebay.parked p where p.group_id = k.group_id and p.ordering_key = k.ordering_key)
               or v_first > (select coalesce(t.high_seq, t.low_seq) from forebay.key_run t
                             where t.group_id = k.group_id and t.ordering_key = k.ordering_key order by t.no limit 1) as is_due
        from key k
    loop
        v_keys := v_keys + 1;
        if v_key.is_due then
            v_gone := forebay._trim_key(v_key.group_id, v_key.ordering_key, v_first, p_most);
            rows := rows + v_gone;
            if v_gone >= p_most then  -- The key may have more.
                next := coalesce(v_stay, '[]');
                return;
            end if;
        end if;
        v_stay := jsonb_build_array(v_key.group_id, v_key.ordering_key);
        if v_keys + rows >= p_most then
            next := v_stay;
            return;
        end if;
    end loop;
end
$$;


-- Delete at most p_most parked rows, and as many key runs, of one key; returns the number of rows.
create function forebay._trim_key(p_group_id bigint, p_key text, p_first bigint, p_most integer) returns bigint
language plpgsql volatile
as $$
declare
    v_state  record;
    v_parked bigint;
    v_runs   bigint;
begin
    select s.taken_up_to, s.since, s.open > 0 or s.head is not null or s.waiting_seqs <> '{}' as is_needed into v_state
    from forebay._key_states(p_group_id, array[p_key]) s;
    delete from forebay.parked p
    where p.ctid = any (array(
        select o.ctid from forebay.parked o
        where o.group_id = p_group_id and o.ordering_key = p_key and o.parked_no <= v_state.taken_up_to
        order by o.parked_no limit p_most));
    get diagnostics v_parked = row_count;
    with old as (
        select o.ctid as row, o.no, coalesce(o.high_seq, o.low_seq) as high_seq from forebay.key_run o
        where o.group_id = p_group_id and o.ordering_key = p_key order by o.no limit p_most)
    delete from forebay.key_run t
    where t.ctid = any (array(
        select o.row from old o
        where o.no < coalesce((select min(i.no) from old i where i.high_seq >= p_first), 9223372036854775807)
          and (o.no < v_state.since or not v_state.is_needed)));
    get diagnostics v_runs = row_count;
    return v_parked + v_runs;
end
$$;
