-- grant: worker

-- Take duties without a leader, and keep those that the caller holds, for some seconds; returns the duties it holds now.
--
-- A flag sequence is read and set outside transactions and locks nothing. If two workers take a duty at the same moment, the
-- later one is recorded; the other learns it at its next call. Several workers may do the work of a duty without harm. Every
-- worker may do a duty without a flag sequence.
--
-- Parameters:
--   p_holder   the caller's number, 0 to 1048575, drawn at random by each worker
--   p_duties   0 is maintenance, any other number is the group of that number
--   p_seconds  how long the duties are kept unless renewed, at most 130
-- Errors: JQ001 a bad holder or time.
create function forebay.lead_v1(p_holder integer, p_duties bigint[], p_seconds double precision) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_duty     bigint;
    v_flag     regclass;
    v_value    bigint;
    v_held     bigint[] := '{}';
begin
    if (p_holder between 0 and 1048575 and p_seconds > 0 and p_seconds <= 130) is not true then
        raise exception using errcode = 'JQ001',
            message = format('holder %s for %s s: the first must be within 0 to 1048575, the second within 0 to 130',
                             coalesce(p_holder::text, 'null'), coalesce(p_seconds::text, 'null'));
    end if;
    perform set_config('synchronous_commit', 'off', true);
    foreach v_duty in array p_duties loop
        continue when forebay._leader_of(v_duty) <> p_holder;
        v_flag := forebay._leader_flag(v_duty);
        if v_flag is not null then
            v_value := ((extract(epoch from clock_timestamp()) + p_seconds) * 1000)::bigint << 20 | p_holder;
            if pg_sequence_last_value(v_flag) & 1048575 = p_holder then
                perform forebay._advance_flag(v_flag, v_value, 262144000);  -- Steps of 250 ms; the holder stays.
            else
                perform setval(v_flag, v_value);
            end if;
        end if;
        v_held := v_held || v_duty;
    end loop;
    return v_held;
end
$$;
