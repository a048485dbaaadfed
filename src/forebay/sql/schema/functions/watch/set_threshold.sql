-- grant: operator

-- Set a threshold of the alerts, from 0; null removes it, so that the next more general one holds.
-- Returns the value before. The most special one holds: of the queue and tag, of the tag, of the
-- queue, of all, and then the default of the library. Tags matter to dead letters only. A name that
-- no rule knows is refused by the library, not here.
--
-- Errors: JQ001 a bad name or value.
-- See: docs/howto/monitoring.md
create function forebay.set_threshold(name text, value double precision, queue text default null, tag text default null) returns double precision
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_before double precision;
begin
    if (length(set_threshold.name) between 1 and 100) is not true or (coalesce(set_threshold.value, 0) between 0 and 1e15) is not true then
        raise exception using errcode = 'JQ001', column = 'value',
            message = format('threshold %s cannot be %s', coalesce(quote_literal(left(set_threshold.name, 100)), 'null'), coalesce(set_threshold.value::text, 'null')),
            hint = 'The value is a number from 0.';
    end if;
    select t.value into v_before from forebay.alert_threshold t
    where t.name = set_threshold.name and t.queue = coalesce(set_threshold.queue, '') and t.tag = coalesce(set_threshold.tag, '') for update;
    if v_before is not distinct from set_threshold.value then
        return v_before;
    end if;
    if set_threshold.value is null then
        delete from forebay.alert_threshold t
        where t.name = set_threshold.name and t.queue = coalesce(set_threshold.queue, '') and t.tag = coalesce(set_threshold.tag, '');
    else
        insert into forebay.alert_threshold (name, queue, tag, value)
        values (set_threshold.name, coalesce(set_threshold.queue, ''), coalesce(set_threshold.tag, ''), set_threshold.value)
        on conflict on constraint alert_threshold_pkey do update set value = excluded.value;
    end if;
    perform forebay._record_event(
        'alerts.set', p_queue => set_threshold.queue, p_kind => set_threshold.tag, p_old => to_jsonb(v_before), p_new => to_jsonb(set_threshold.value),
        p_detail => set_threshold.name);
    return v_before;
end
$$;
