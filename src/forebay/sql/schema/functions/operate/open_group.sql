-- grant: worker, operator

-- Open a consumer group, an independent reader of a queue; returns its id. Opening it again changes nothing.
--
-- Parameters:
--   start  'beginning': every job still in the log; 'now': jobs that become visible from now on; null: the
--          beginning for the first group of a queue, now for a later one
-- Errors: JQ001 a bad name or start.
create function forebay.open_group(queue text, name text default 'default', start text default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name constant text := '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$';
    v_id   bigint;
begin
    if (open_group.queue ~ v_name and open_group.name ~ v_name) is not true
       or open_group.start not in ('beginning', 'now') then
        raise exception using errcode = 'JQ001',
            message = format('cannot open group %s of queue %s at %s', coalesce(quote_literal(left(open_group.name, 40)), 'null'),
                             coalesce(quote_literal(left(open_group.queue, 40)), 'null'), coalesce(open_group.start, 'its default')),
            hint = 'Names have letters, digits and _ . : - only; start is beginning or now.';
    end if;
    select g.group_id into v_id from forebay.queue_group g
    where g.queue = open_group.queue and g.name = open_group.name;
    if v_id is not null then
        return v_id;
    end if;
    insert into forebay.queue_group (group_id, queue, name, start_after, created_at)
    values (forebay._random_name(), open_group.queue, open_group.name,
            case when open_group.start = 'now'
                      or (open_group.start is null
                          and exists (select from forebay.queue_group g where g.queue = open_group.queue))
                 then pg_current_snapshot() else '1:1:' end,
            forebay._now())
    on conflict do nothing
    returning group_id into v_id;
    if v_id is not null then
        execute format('create sequence forebay.leader_%s as bigint cache 1', v_id);
        return v_id;
    end if;
    select g.group_id into v_id from forebay.queue_group g
    where g.queue = open_group.queue and g.name = open_group.name;
    return v_id;
end
$$;
