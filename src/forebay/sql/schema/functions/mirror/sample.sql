-- grant: worker, operator

-- Record how many jobs of a mirror are due, unless a session did so in the last 50 seconds, or is
-- doing so. Returns true if it recorded. The parameters are those of forebay.mirror_status().
-- Visits every waiting job. Deleted after two days.
--
-- Errors: JQ001 a missing name or a bad time.
-- Transaction: any; commits asynchronously.
-- Locks: the lock of samples, if it is free.
create function forebay.sample_mirror(
    p_name text, p_queue text, p_group_name text, p_expires_seconds double precision, p_bulk_tags text[], p_bulk_priority integer)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: short
as $$
declare
    v_now constant timestamptz := forebay._now();
begin
    perform forebay._require('p_name', p_name is not null, p_name, 'the name of a mirror'),
            forebay._require('p_expires_seconds', p_expires_seconds >= 0, p_expires_seconds::text, '0 or more seconds');
    if exists (select from forebay.mirror_sample s where s.mirror = p_name and s.at > v_now - interval '50 seconds')
       or not forebay._try_lock('mirror_sample') then
        return false;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    insert into forebay.mirror_sample (mirror, at, due, due_all, waiting)
    select p_name, v_now,
           coalesce(sum(o.due) filter (where not forebay._is_bulk(o.tag, o.priority, p_bulk_tags, p_bulk_priority)), 0),
           coalesce(sum(o.due), 0), coalesce(sum(o.waiting), 0)
    from (select u.tag, u.priority, count(*) as waiting, count(*) filter (where u.due_at <= v_now) as due
          from forebay.unfinished('mirror.' || p_name, p_queue, p_group_name, p_expires_seconds) u
          group by u.tag, u.priority) o;
    return true;
end
$$;
