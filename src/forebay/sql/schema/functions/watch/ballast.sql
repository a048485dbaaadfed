-- grant: operator

-- Give back the room that checks of the alerts keep for a full disk, up to 16 MB: enough to pause,
-- to cancel and to purge. Returns the number of bytes; 0, if nothing is kept. The checks fill it
-- again from an hour later on, while writes succeed. Room on the disk of the WAL is not concerned:
-- where that is full, PostgreSQL stops.
--
-- Errors: 55P03 another session uses the table, such as a dump.
-- Transaction: the caller's; the room is free when it has committed.
-- See: docs/howto/troubleshooting.md
--
-- Inside: truncate needs no new page, and the row of the last check has room for its next version. The event is left out where no page has
-- room for it.
create function forebay.drop_ballast() returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_bytes bigint;
begin
    begin
        lock table forebay.ballast in access exclusive mode nowait;
    exception when lock_not_available then
        raise exception using errcode = '55P03', message = 'another session uses the table forebay.ballast',
            hint = 'A dump reads it. Try again when that has ended.';
    end;
    v_bytes := pg_relation_size('forebay.ballast');
    if v_bytes = 0 then
        return 0;
    end if;
    truncate forebay.ballast;
    update forebay.alert_check c set ballast_released_at = forebay._now();
    begin
        perform forebay._record_event('ballast.drop', p_new => to_jsonb(v_bytes));
    exception when disk_full then
        null;  -- The release itself must not fail for want of room.
    end;
    return v_bytes;
end
$$;


-- Add 4 MB to the ballast while it has less than 16, but not within an hour of its release, nor before the first sample of sizes is an hour old.
create function forebay._keep_ballast(p_now timestamptz) returns void
language plpgsql volatile
-- planner: indexed
as $$
declare
    v_page constant integer := current_setting('block_size')::integer;
begin
    if not exists (select from forebay.space_sample i where i.at <= p_now - interval '1 hour')
       or exists (select from forebay.alert_check c where c.ballast_released_at > p_now - interval '1 hour') then
        return;
    end if;
    lock table forebay.ballast in row exclusive mode nowait;
    if pg_relation_size('forebay.ballast') < 16000000 then
        insert into forebay.ballast (filler) select repeat('x', v_page - 192) from generate_series(1, 4000000 / v_page + 1);
    end if;
exception when lock_not_available or disk_full then
    null;  -- The next sample tries again.
end
$$;
