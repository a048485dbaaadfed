-- Make the group's claims look at some keys again: append a recheck row for each.
create function forebay._announce_keys(p_queue text, p_priority integer, p_group_id bigint, p_keys text[]) returns void
language plpgsql volatile
as $$
begin
    insert into forebay.log (lane, enqueued_at, kind, args, ordering_key)
    select l.lane, l.at, '', '{}', k.key
    from unnest(p_keys) k (key),
         (select forebay._record_keyed_lane(p_queue, p_priority, p_group_id) as lane, forebay._now() as at offset 0) l;
end
$$;
