-- grant: operator

-- Expect the deaths of a cause, for a time or until forebay.unmute_cause; returns the end, null for
-- none. They are recorded and counted as before. Workers log them as information, not as errors,
-- from their next heartbeat on, and the doctor does not report them.
--
-- Errors: JQ001 a bad duration, or 1,000 causes are muted; JQ015 no dead letter has the cause.
create function forebay.mute_cause(cause text, duration interval default null) returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_until constant timestamptz := forebay._now() + case when duration between interval '0' and interval '10 years' then duration end;
    v_kind  text;
begin
    if duration <= interval '0' or duration > interval '10 years' then
        raise exception using errcode = 'JQ001', column = 'duration',
            message = format('duration %s is not within ten years', duration);
    end if;
    select d.kind into v_kind from forebay.dead_letter d where d.cause = mute_cause.cause and d.cause <> '' limit 1;
    if v_kind is null then
        raise exception using errcode = 'JQ015',
            message = format('no dead letter has the cause %s', coalesce(quote_literal(left(mute_cause.cause, 40)), 'null')),
            hint = 'List causes with forebay dead groups.';
    end if;
    delete from forebay.muted_cause m where m.until <= forebay._now();
    if (select count(*) from forebay.muted_cause) >= 1000 then
        raise exception using errcode = 'JQ001', column = 'cause', message = '1000 causes are muted',
            hint = 'Unmute others first, or mute for a time.';
    end if;
    insert into forebay.muted_cause (cause, muted_at, until) values (mute_cause.cause, forebay._now(), v_until)
    on conflict on constraint muted_cause_pkey do update set muted_at = excluded.muted_at, until = excluded.until;
    perform forebay._record_event('dead.mute', p_kind => v_kind, p_new => jsonb_build_object('cause', mute_cause.cause, 'until', v_until));
    return v_until;
end
$$;


-- Let the deaths of a cause be errors again; returns whether it was muted.
create function forebay.unmute_cause(cause text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_until timestamptz;
begin
    delete from forebay.muted_cause m where m.cause = unmute_cause.cause returning coalesce(m.until, 'infinity') into v_until;
    if v_until is null or v_until <= forebay._now() then
        return false;
    end if;
    perform forebay._record_event('dead.unmute', p_old => jsonb_build_object('cause', unmute_cause.cause, 'until', v_until));
    return true;
end
$$;
