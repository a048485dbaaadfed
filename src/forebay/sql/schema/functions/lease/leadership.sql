-- The flag sequence of a duty; null when there is none.
create function forebay._leader_flag(p_duty bigint) returns regclass
language sql stable
as $$ select to_regclass('forebay."leader_' || p_duty::text || '"') $$;


-- The holder that a flag sequence with this value names at a time in milliseconds, a number below 2^20; null when none does.
--
-- A time too far in the future was written before the clock was set back: lead_v1() sets one of at most 130 s and a step.
create function forebay._holder_at(p_value bigint, p_millis bigint) returns integer
language sql immutable
as $$ select case when (p_value >> 20) - p_millis between 1 and 130250 then (p_value & 1048575)::integer end $$;


-- The holder of a duty now; null when no worker leads it, or it has no flag sequence.
create function forebay._leader_of(p_duty bigint) returns integer
language plpgsql volatile
as $$
declare
    v_value bigint;
begin
    begin
        v_value := pg_sequence_last_value(forebay._leader_flag(p_duty));
        raise exception 'read';  -- The end of the block gives the lock of the sequence back, for its drop.
    exception
        when raise_exception then
            null;
        when internal_error then
            return null;  -- The group was dropped between its name and its number.
    end;
    return forebay._holder_at(v_value, (extract(epoch from clock_timestamp()) * 1000)::bigint);
end
$$;
