-- Is a job, by its tag and priority, part of a bulk request, which alerts ignore?
create function forebay._is_bulk(p_tag text, p_priority integer, p_tags text[], p_least integer) returns boolean
language sql immutable
as $$
    select coalesce(p_priority >= p_least, false)
        or exists (select from unnest(p_tags) t (tag) where p_tag = t.tag or starts_with(p_tag, t.tag || '.'))
$$;
