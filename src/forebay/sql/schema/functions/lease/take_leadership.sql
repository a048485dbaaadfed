-- grant: worker

-- Take leaderless duties and keep those that the caller holds, for some seconds; returns which it holds now.
--
-- A flag sequence is read and set outside transactions and locks nothing. Of two who take a duty at the same moment the later
-- one is written down; the other learns it at its next call. What a duty asks for may be done by several. A duty without
-- a flag sequence is everybody's.
--
-- Parameters:
--   p_holder   who asks, 0 to 1048575, drawn at random by each worker
--   p_duties    0 is the maintenance, any other the group of that number
--   p_seconds  how long they are kept unless renewed, at most 600
-- Errors: JQ001 a bad holder or time.
create function forebay.lead_v1(p_holder integer, p_duties bigint[], p_seconds double precision) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_duty     bigint;
    v_flag regclass;
    v_held     bigint[] := '{}';
begin
    if (p_holder between 0 and 1048575 and p_seconds > 0 and p_seconds <= 600) is not true then
        raise exception using errcode = 'JQ001',
            message = format('holder %s for %s s: the first must be within 0 to 1048575, the second within 0 to 600',
                             coalesce(p_holder::text, 'null'), coalesce(p_seconds::text, 'null'));
    end if;
    perform set_config('synchronous_commit', 'off', true);
    foreach v_duty in array p_duties loop
        continue when forebay._leader_of(v_duty) <> p_holder;
        v_flag := forebay._leader_flag(v_duty);
        if v_flag is not null then
            perform setval(v_flag,
                ((extract(epoch from clock_timestamp()) + p_seconds) * 1000)::bigint << 20 | p_holder);
        end if;
        v_held := v_held || v_duty;
    end loop;
    return v_held;
end
$$;
