-- Delete results past their time.
create function forebay._trim_results(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time('result', 'kept_until', forebay._now(), p_after, p_most)
$$;


-- Delete progress older than a day.
create function forebay._trim_progress(p_after text, p_most integer, out rows bigint, out next text)
language sql volatile
as $$
    select * from forebay._trim_by_time('progress', 'recorded_at', forebay._now() - interval '1 day', p_after, p_most)
$$;
