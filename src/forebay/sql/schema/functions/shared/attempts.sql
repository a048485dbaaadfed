-- The maximum number of attempts of a queue's jobs; null: their kinds decide.
create function forebay._queue_attempts(p_queue text) returns integer
language sql stable
as $$
    select a.max_attempts from forebay.queue_attempts a
    where pg_sequence_last_value('forebay.queue_attempts_seq') is not null and a.queue = p_queue
$$;


-- The ends of attempts as the maximum of the queue has them: a failed attempt that a worker would retry may be the last one, and one
-- that it takes for the last may not be. Jobs with their own maximum stay as they are.
--
-- The worker learns the number with its heartbeats and tells its handlers; this decides, so the number holds from its commit on.
--
-- Parameters: of the batch, its lane, lanes, xids and seqs; p_ended as in forebay.settle_v1().
create function forebay._with_queue_attempts(p_lane bigint, p_lanes bigint[], p_xids xid8[], p_seqs bigint[], p_ended jsonb) returns jsonb
language plpgsql stable
-- planner: hot
as $$
declare
    v_most  constant integer := forebay._queue_attempts((select l.queue from forebay.lane l where l.lane = p_lane limit 1));
    v_all   jsonb := '[]';
    v_item  jsonb;
    v_row   forebay.log;
    v_nr    integer;
    v_used  integer;
    v_lost  boolean;
begin
    if v_most is null then
        return p_ended;
    end if;
    for v_item in select e.value from jsonb_array_elements(p_ended) e loop
        v_nr := (v_item ->> 'offset')::integer;
        if v_item ? 'of_step' then
            null;  -- The policy of the step decides: when it gives up, the handler may compensate.
        elsif v_item ->> 'outcome' in ('retried', 'lost') or v_item ->> 'outcome' = 'dead' and v_item ->> 'reason' in ('exhausted', 'worker lost') then
            v_row := forebay._row(coalesce(p_lanes[v_nr], p_lane), coalesce(p_xids[v_nr], p_xids[1]), p_seqs[v_nr]);
            v_used := coalesce((v_item ->> 'attempts')::integer, coalesce(v_row.attempt, 0) + 1);
            v_lost := v_item ->> 'outcome' = 'lost' or coalesce(v_item ->> 'reason' = 'worker lost', false);
            if v_row.seq is not null and v_row.max_attempts is null then
                if jsonb_typeof(v_item -> 'error') = 'object' then
                    v_item := jsonb_set(v_item, '{error,max_attempts}', to_jsonb(v_most));
                end if;
                if v_used >= v_most and v_item ->> 'outcome' <> 'dead' then
                    v_item := v_item - 'after' || jsonb_build_object(
                        'outcome', 'dead', 'reason', case when v_lost then 'worker lost' else 'exhausted' end, 'is_decided_here', true,
                        'holds_key', v_row.ordering_key is not null
                                     and exists (select from forebay.kind_queue k where k.kind = v_row.kind and k.holds_key));
                elsif v_used < v_most and v_item ->> 'outcome' = 'dead' then
                    v_item := v_item - '{reason,holds_key}'::text[] || jsonb_build_object(
                        'outcome', case when v_lost then 'lost' else 'retried' end, 'after', least(3600, 5 * 2 ^ least(v_used - 1, 20)));
                end if;
            end if;
        end if;
        v_all := v_all || jsonb_build_array(v_item);
    end loop;
    return v_all;
end
$$;
