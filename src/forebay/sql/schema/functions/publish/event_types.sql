-- grant: operator

-- Create an event type, or change its description; returns whether it is new. A name has letters,
-- digits and `_ . : -`, at most 128. Names that begin with `forebay.` are reserved.
--
-- Errors: JQ001 a bad name.
create function forebay.create_event_type(name text, description text default null) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_is_new boolean;
    v_before text;
begin
    if (create_event_type.name ~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$') is not true then
        raise exception using errcode = 'JQ001', column = 'event_type',
            message = format('event type %s is not a name: letters, digits and _ . : - only, at most 128',
                             coalesce(quote_literal(left(create_event_type.name, 40)), 'null'));
    elsif create_event_type.name like 'forebay.%' then
        raise exception using errcode = 'JQ001', column = 'event_type',
            message = format('event type %s: names that begin with forebay. are reserved', quote_literal(create_event_type.name)),
            hint = 'Choose another name.';
    end if;
    insert into forebay.event_type (name, description, created_at)
    values (create_event_type.name, create_event_type.description, forebay._now())
    on conflict do nothing;
    v_is_new := found;
    if not v_is_new then
        select t.description into v_before from forebay.event_type t where t.name = create_event_type.name for update;
        if v_before is not distinct from create_event_type.description then
            return false;
        end if;
        update forebay.event_type t set description = create_event_type.description where t.name = create_event_type.name;
    end if;
    perform forebay._record_event('event_types.create', p_kind => create_event_type.name,
                                  p_old => case when not v_is_new then jsonb_build_object('description', v_before) end,
                                  p_new => jsonb_build_object('description', create_event_type.description));
    return v_is_new;
end
$$;


-- Drop an event type and its subscriptions; returns whether there was one. Deliveries that wait are
-- still sent. Events that no router has expanded yet become dead letters.
--
-- Errors: JQ001 a reserved name.
-- Locks: the type's row and those of its subscriptions.
create function forebay.drop_event_type(name text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
begin
    if drop_event_type.name like 'forebay.%' then
        raise exception using errcode = 'JQ001', column = 'event_type',
            message = format('event type %s is reserved', quote_literal(drop_event_type.name)), hint = 'Nothing was dropped.';
    end if;
    select count(*) into v_count from forebay.subscription s where s.event_type = drop_event_type.name;
    delete from forebay.event_type t where t.name = drop_event_type.name;
    if not found then
        return false;
    end if;
    perform forebay._record_event('event_types.drop', p_kind => drop_event_type.name, p_count => v_count);
    return true;
end
$$;
