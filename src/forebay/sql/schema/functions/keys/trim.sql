-- Delete parked rows whose jobs have been taken, and key runs that are no longer needed: not the newest of their key, or of jobs
-- that all left the archive. Returns the number of rows.
--
-- A key loses its oldest runs first: the newest run that is left has its state. A run that took no job has no numbers, so it would
-- go before older ones, and the key would again wait for a job that was cancelled.
create function forebay._trim_key_runs(p_most integer) returns bigint
language plpgsql volatile
as $$
declare
    v_key   record;
    v_first bigint;
    v_rows  bigint;
    v_total bigint := 0;
begin
    if pg_sequence_last_value('forebay.key_seq') is null then
        return 0;
    end if;
    select coalesce(min(s.lo), 0) into v_first from forebay.segment s where s.removed_at is null;
    for v_key in
        with recursive key as (
            (select t.group_id, t.ordering_key from forebay.key_run t order by t.group_id, t.ordering_key limit 1)
            union all
            select n.group_id, n.ordering_key
            from key k, lateral (
                select t.group_id, t.ordering_key from forebay.key_run t
                where (t.group_id, t.ordering_key) > (k.group_id, k.ordering_key)
                order by t.group_id, t.ordering_key limit 1) n
        )
        select k.group_id, k.ordering_key, s.taken_up_to, s.since, s.open > 0 or s.head is not null or s.waiting_seqs <> '{}' as is_needed
        from (select k.* from key k
              -- Most keys have nothing to delete: numbers rise from key run to key run.
              where exists (select from forebay.parked p where p.group_id = k.group_id and p.ordering_key = k.ordering_key)
                 or v_first > (select t.high_seq from forebay.key_run t
                               where t.group_id = k.group_id and t.ordering_key = k.ordering_key order by t.no limit 1)
              offset 0) k,
             lateral forebay._key_states(k.group_id, array[k.ordering_key]) s
    loop
        exit when v_total >= p_most;
        delete from forebay.parked p
        where p.group_id = v_key.group_id and p.ordering_key = v_key.ordering_key and p.parked_no <= v_key.taken_up_to;
        get diagnostics v_rows = row_count;
        v_total := v_total + v_rows;
        delete from forebay.key_run t
        where t.group_id = v_key.group_id and t.ordering_key = v_key.ordering_key and t.high_seq < v_first
          and (t.no < v_key.since or not v_key.is_needed)
          and not exists (select from forebay.key_run o
                          where o.group_id = t.group_id and o.ordering_key = t.ordering_key and o.no < t.no and o.high_seq >= v_first);
        get diagnostics v_rows = row_count;
        v_total := v_total + v_rows;
    end loop;
    return v_total;
end
$$;
