-- Delete generations that are no longer needed: older than a day, and superseded or ended; returns their number.
--
-- The newest of a key is deleted only when no transaction has it locked: see forebay._enqueue_unique().
create function forebay._trim_keys(p_most integer) returns bigint
language plpgsql volatile
as $$
declare
    v_before constant timestamptz := forebay._now() - interval '1 day';
    v_oldest timestamptz;
    v_key    forebay.unique_key;
    v_count  bigint := 0;
begin
    select u.taken_at into v_oldest from forebay.unique_key u order by u.taken_at limit 1;
    for v_key in
        select u.* from forebay.unique_key u
        where u.taken_at < v_before
          -- About half of the calls start at a random time, so that keys which are locked for long do not hide the others.
          and u.taken_at >= case when random() < 0.5 then v_oldest else v_oldest + random() * (v_before - v_oldest) end
        order by u.taken_at limit least(p_most, 2000)
        for update skip locked
    loop
        if exists (select from forebay.unique_key u
                   where u.queue = v_key.queue and u.mode = v_key.mode and u.key = v_key.key and u.gen > v_key.gen) then
            continue when exists (
                select from forebay.unique_key u
                where u.queue = v_key.queue and u.mode = v_key.mode and u.key = v_key.key
                  and u.gen > v_key.gen and u.origin <= v_key.gen);
        else
            continue when v_key.free_at > forebay._now() or forebay._key_state(v_key) <> 'ended';
        end if;
        delete from forebay.unique_key u
        where u.queue = v_key.queue and u.mode = v_key.mode and u.key = v_key.key and u.gen = v_key.gen;
        v_count := v_count + 1;
    end loop;
    return v_count;
end
$$;
