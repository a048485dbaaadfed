-- Delete generations that are no longer needed: superseded or ended, and older than a day; those of a throttle a day after their period.
--
-- The newest of a key is deleted only when no transaction has it locked: see forebay._enqueue_unique().
create function forebay._trim_unique_keys(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
declare
    v_before constant timestamptz := forebay._now() - interval '1 day';
    v_ctids tid[];
    v_key   forebay.unique_key;
    v_at    timestamptz;
    v_job   bigint;
begin
    rows := 0;
    select array_agg(u.ctid), max(u.at), (array_agg(u.job_id order by u.at desc, u.job_id desc))[1] into v_ctids, v_at, v_job
    from (select i.ctid, coalesce(i.free_at, i.taken_at) as at, i.job_id from forebay.unique_key i
          where coalesce(i.free_at, i.taken_at) < v_before
            and (coalesce(i.free_at, i.taken_at), i.job_id) > (coalesce((p_after::jsonb ->> 0)::timestamptz, '-infinity'), coalesce((p_after::jsonb ->> 1)::bigint, 0))
          order by coalesce(i.free_at, i.taken_at), i.job_id limit p_most) u;
    for v_key in select u.* from forebay.unique_key u where u.ctid = any (v_ctids) for update skip locked loop
        if exists (select from forebay.unique_key u
                   where u.queue = v_key.queue and u.mode = v_key.mode and u.key = v_key.key and u.gen > v_key.gen) then
            continue when exists (
                select from forebay.unique_key u
                where u.queue = v_key.queue and u.mode = v_key.mode and u.key = v_key.key
                  and u.gen > v_key.gen and u.origin <= v_key.gen);
        else
            continue when forebay._key_state(v_key) <> 'ended';
        end if;
        delete from forebay.unique_key u
        where u.queue = v_key.queue and u.mode = v_key.mode and u.key = v_key.key and u.gen = v_key.gen;
        rows := rows + 1;
    end loop;
    next := case when cardinality(v_ctids) >= p_most then jsonb_build_array(v_at, v_job) end;
end
$$;
