-- Decisions about the keys of a group are made under this advisory key: claims hold it alone, settlements share it.
create function forebay._keys_lock(p_group_id bigint) returns integer
language sql immutable
as $$ select hashint8(hashtextextended('keys', p_group_id)) $$;
