-- The jobs of ordering keys that wait behind the cursors of groups, by the priority of their lanes; cancelled ones do not count.
create function forebay._waiting_parked(p_queues text[])
returns table (queue text, priority integer, group_id bigint, parked bigint)
language plpgsql stable
-- planner: in order
as $$
#variable_conflict use_column
declare
    v_tombstones constant boolean := pg_sequence_last_value('forebay.tombstone_seq') is not null;
begin
    if pg_sequence_last_value('forebay.key_seq') is null then
        return;
    end if;
    return query
    with parked as materialized (
        select l.queue, l.priority, p.group_id, p.lane, p.seq
        from forebay._all_ordering_parked() p
        cross join lateral (select i.queue, i.priority from forebay.lane i where i.lane = p.lane limit 1) l
        where p_queues is null or l.queue = any (p_queues)),
    cancelled as materialized (
        select p.group_id, r.lane, r.seq
        from (select i.group_id, array_agg(i.lane) as lanes, array_agg(i.seq) as seqs from parked i
              where v_tombstones group by i.group_id) p
        cross join lateral unnest(forebay._fetch(p.lanes, p.seqs)) r
        where exists (select from forebay.tombstone t
                      where t.job_id = coalesce(r.job_id, r.seq) and t.reason in ('c', 'r') and (t.group_id is null or t.group_id = p.group_id)))
    select p.queue, p.priority, p.group_id, count(*) from parked p
    where not exists (select from cancelled c where c.group_id = p.group_id and c.lane = p.lane and c.seq = p.seq)
    group by p.queue, p.priority, p.group_id;
end
$$;
