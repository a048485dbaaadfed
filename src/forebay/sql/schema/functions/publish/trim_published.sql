-- Delete published events that no delivery refers to any more.
create function forebay._trim_published(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$ select * from forebay._trim_by_time('published', 'keep_until', forebay._now(), p_after, p_most) $$;


-- Delete replays that ended.
create function forebay._trim_replays(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$ select * from forebay._trim_by_time('replay', 'ended_at', forebay._now() - interval '30 days', p_after, p_most) $$;
