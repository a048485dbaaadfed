-- The outcomes of a flush, with k for every job that would run again although an earlier job of its key has not ended: it
-- is requeued behind that job. So at most one job of a key is in a new row that no claim has read.
create function forebay._requeued(
    p_group_id bigint, p_lease_id bigint, p_claim_no bigint, p_keys text[], p_offsets smallint[], p_outcomes "char"[])
returns "char"[]
language sql stable
-- planner: arrays
as $$
    with now as materialized (
        select u.place, u.code, u.nr from unnest(p_offsets, p_outcomes) with ordinality u (place, code, nr)
    ), ended as materialized (
        select n.place, n.code from now n
        union all
        select u.place, coalesce(u.code, 'd')
        from (select i.offsets, i.outcomes from forebay.settlement i
              where i.lease_id = p_lease_id and i.claim_no = p_claim_no offset 0) s, unnest(s.offsets, s.outcomes) u (place, code)
    ), entry as materialized (
        select b.key, b.place, e.code is not null and e.code in ('d', 'c', 'x') as is_final
        from unnest(p_keys) with ordinality b (key, place) left join ended e on e.place = b.place
    ), first as materialized (
        select e.key, min(e.place) as place from entry e where not e.is_final group by e.key
    ), before as materialized (
        select k.key from unnest(forebay._keys_before(p_group_id, p_lease_id, p_claim_no, array(
            select p_keys[n.place] from now n where n.code not in ('d', 'c', 'x')))) k (key)
    )
    select array_agg(case when n.code not in ('d', 'c', 'x') and (n.place > f.place or b.key is not null) then 'k' else n.code end
                     order by n.nr)
    from now n
    join entry e on e.place = n.place
    left join first f on f.key = e.key
    left join before b on b.key = e.key
$$;


-- Announce the keys of a flush whose key run may be over, with its last job settled now or before, and for which
-- jobs wait.
--
-- The waiting jobs are read under the lock of the claims' decisions: a claim that has parked a job by then is seen, and a later
-- one sees this settlement. A handler's transaction may be held open; it neither takes that lock nor reads, and announces in any
-- case. A superfluous recheck row is read and ignored.
--
-- Parameters: p_parked_no, see batch.parked_no.
-- Locks: the lock of the group's ordering keys (shared), except for a handler's own transaction.
create function forebay._release_keys(
    p_lease_id bigint, p_claim_no bigint, p_lane bigint, p_group_id bigint, p_keys text[], p_tails smallint[],
    p_parked_no bigint, p_flush_no integer, p_offsets smallint[], p_outcomes "char"[])
returns void
language plpgsql volatile
as $$
declare
    v_lane  record;
    v_tails smallint[];
    v_keys  text[];
    v_looks constant boolean := p_flush_no > 0 and current_setting('transaction_isolation') = 'read committed'
                            and statement_timestamp() - transaction_timestamp() <= interval '3 seconds';
begin
    if v_looks then
        perform forebay._lock_keys(p_group_id, true);
        -- No job was parked since the claim, and no job of these keys continues or was requeued.
        if p_outcomes is null and p_parked_no = coalesce(pg_sequence_last_value('forebay.parked_seq'), 0)
           and not exists (select from forebay.settlement s
                           where s.lease_id = p_lease_id and s.claim_no >= p_claim_no and s.outcomes is not null) then
            return;
        end if;
    end if;
    p_tails := coalesce(p_tails, array(select i::smallint from generate_subscripts(p_keys, 1) i));
    if p_offsets is null then
        v_tails := array(select distinct o from unnest(p_tails) o);
    elsif p_outcomes is null and p_flush_no > 0 then
        v_tails := array(select distinct p_tails[o] from unnest(p_offsets) o);
        if not v_tails <@ p_offsets then
            v_tails := array(select o from unnest(v_tails) o
                             where o = any (p_offsets)
                                or exists (select from forebay.settlement s
                                           where s.lease_id = p_lease_id and s.claim_no = p_claim_no and o = any (s.offsets)));
        end if;
    else
        -- Where a job continues in a new row, or holds its key, the key waits for that.
        v_tails := array(
            select p_tails[u.place] from unnest(p_offsets, p_outcomes) u (place, code)
            group by 1
            having bool_or(u.code in ('r', 'l', 's', 'u', 'h', 'y')) is not true);
    end if;
    if v_tails = '{}' then
        return;
    end if;
    v_keys := array(select p_keys[o] from unnest(v_tails) o);
    if v_looks and not exists (select from forebay.settlement s
                               where s.lease_id = p_lease_id and s.claim_no >= p_claim_no and 'k' = any (s.outcomes)) then
        v_keys := array(
            select k.key
            from unnest(v_keys) k (key)
            left join lateral (select i.taken_up_to, i.rest_seqs from forebay.key_run i
                               where i.group_id = p_group_id and i.ordering_key = k.key order by i.no desc limit 1) t on true
            where t.rest_seqs is not null
               or exists (select from forebay.parked p
                          where p.group_id = p_group_id and p.ordering_key = k.key and p.parked_no > coalesce(t.taken_up_to, 0)));
    end if;
    if v_keys <> '{}' then
        select l.queue, l.priority into v_lane from forebay.lane l where l.lane = p_lane limit 1;
        perform forebay._announce_keys(v_lane.queue, v_lane.priority, p_group_id, v_keys);
    end if;
end
$$;
