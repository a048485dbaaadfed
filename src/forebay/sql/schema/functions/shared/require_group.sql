-- Errors: JQ014 when the queue has no such group.
create function forebay._require_group(p_queue text, p_group_name text) returns void
language plpgsql stable
as $$
begin
    if not exists (select from forebay.queue_group g
                   where g.queue = p_queue and (p_group_name is null or g.name = p_group_name)) then
        raise exception using errcode = 'JQ014',
            message = format('queue %s has no group%s', coalesce(quote_literal(p_queue), 'null'),
                             coalesce(' ' || quote_literal(p_group_name), '')),
            detail = jsonb_build_object('queue', p_queue, 'group', p_group_name),
            hint = 'Groups are opened by the first worker that serves them, or by forebay.open_group().';
    end if;
end
$$;


-- The name of a group, also of one that was closed; null: no such group.
create function forebay._group_name(p_group_id bigint) returns text
language sql stable
as $$
    select coalesce((select g.name from forebay.queue_group g where g.group_id = p_group_id),
                    (select c.name from forebay.closed_group c where c.group_id = p_group_id))
$$;
