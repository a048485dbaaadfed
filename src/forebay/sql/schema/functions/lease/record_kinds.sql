-- grant: worker

-- Record in which queue the jobs of each kind wait, for forebay.queue_of(); returns the kinds that
-- had another queue, with both queues. Kinds whose queue is recorded already are not written. Of
-- two versions of an application that disagree, the last caller is right. `p_holding` names the
-- kinds whose dead letters hold their ordering key; `p_keys` has, by kind, which arguments make the
-- keys of its jobs; `p_on_dead`, by kind, the follow-up of its dead jobs, as forebay.settle_v1()
-- takes it.
--
-- Errors: JQ001 a bad name, or a bad option of a follow-up.
-- Transaction: any; meant to be autocommitted.
-- Locks: the rows of the kinds that change, in their order.
-- pages: 20 + 5 a kind
create function forebay.record_kinds_v1(p_worker text, p_kinds text[], p_queues text[], p_holding text[] default '{}', p_keys jsonb default '{}', p_on_dead jsonb default '{}')
returns table (kind text, queue text, previous_queue text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_name constant text := '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$';
    v_problem text;
begin
    if cardinality(p_kinds) <> cardinality(p_queues)
       or exists (select from unnest(p_kinds, p_queues) n (kind, queue) where (n.kind ~ v_name and n.queue ~ v_name) is not true) then
        raise exception using errcode = 'JQ001', message = 'a kind or its queue is not a name',
            hint = 'Names have letters, digits and _ . : - only, at most 128.';
    end if;
    if p_keys <> '{}' and pg_sequence_last_value('forebay.kind_keys_seq') is null then
        perform nextval('forebay.kind_keys_seq'), setval('forebay.lane_secret', pg_sequence_last_value('forebay.lane_secret') | 1);
    end if;
    if p_on_dead <> '{}' then
        select f.problem into v_problem
        from jsonb_each(p_on_dead) e cross join lateral forebay._follow_up_problem(e.value) f (problem) where f.problem is not null limit 1;
        if v_problem is not null then
            raise exception using errcode = 'JQ001', message = v_problem,
                hint = 'Nothing was recorded. A follow-up has a kind, and options as at an enqueue.';
        elsif pg_sequence_last_value('forebay.on_dead_seq') is null then
            perform nextval('forebay.on_dead_seq');
        end if;
    end if;
    with other as materialized (
        select k.kind from forebay.kind_queue k
        where k.kind = any (p_kinds)
          and (k.holds_key, k.keys, k.on_dead) is distinct from (k.kind = any (p_holding), p_keys -> k.kind, p_on_dead -> k.kind)
        order by k.kind for update)
    update forebay.kind_queue k
    set holds_key = k.kind = any (p_holding), keys = p_keys -> k.kind, on_dead = p_on_dead -> k.kind
    from other o where k.kind = o.kind;
    return query
    with changed as (
        insert into forebay.kind_queue as k (kind, queue, holds_key, keys, on_dead, recorded_at, recorded_by)
        select distinct on (n.kind collate "C") n.kind, n.queue, n.kind = any (p_holding), p_keys -> n.kind, p_on_dead -> n.kind, forebay._now(), left(p_worker, 200)
        from unnest(p_kinds, p_queues) n (kind, queue)
        where not exists (select from forebay.kind_queue i where i.kind = n.kind and i.queue = n.queue)
        order by n.kind collate "C"
        on conflict on constraint kind_queue_pkey do update
        set queue = excluded.queue, recorded_at = excluded.recorded_at, recorded_by = excluded.recorded_by,
            previous_queue = k.queue, previous_by = k.recorded_by,
            alternated_at = case when excluded.queue = k.previous_queue then excluded.recorded_at else k.alternated_at end
        where k.queue <> excluded.queue
        returning k.kind, k.queue, k.previous_queue)
    select c.kind, c.queue, c.previous_queue from changed c where c.previous_queue is not null;
end
$$;
