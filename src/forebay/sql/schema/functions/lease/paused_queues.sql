-- grant: worker

-- Which of the given groups are paused now, so that a worker can say why it claims nothing there.
--
-- Columns:
--   resume_at  when the pause ends by itself; null: when it is resumed
--
-- Transaction: any; reads only.
-- pages: 10 + 2 a group
create function forebay.paused_queues_v1(p_group_ids bigint[])
returns table (queue text, paused_at timestamptz, resume_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select g.queue, g.paused_at, g.resume_at
    from forebay.queue_group g
    where g.group_id = any (p_group_ids) and forebay._paused_since(g.paused_at, g.resume_at) is not null
    order by g.queue
$$;
