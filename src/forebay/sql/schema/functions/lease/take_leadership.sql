-- grant: worker

-- Take vacant posts and keep those that the caller holds, for some seconds; returns which it holds now.
--
-- A register is read and set outside transactions and locks nothing. Of two who take a post at the same moment the later
-- one is written down; the other learns it at its next call. What a post asks for may be done by several. A post without
-- a register is everybody's.
--
-- Parameters:
--   p_holder   who asks, 0 to 1048575, drawn at random by each worker
--   p_posts    0 is the upkeep, any other the group of that number
--   p_seconds  how long they are kept unless renewed, at most 600
-- Errors: JQ001 a bad holder or time.
create function forebay.hold_posts_v1(p_holder integer, p_posts bigint[], p_seconds double precision) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_post     bigint;
    v_register regclass;
    v_held     bigint[] := '{}';
begin
    if (p_holder between 0 and 1048575 and p_seconds > 0 and p_seconds <= 600) is not true then
        raise exception using errcode = 'JQ001',
            message = format('holder %s for %s s: the first must be within 0 to 1048575, the second within 0 to 600',
                             coalesce(p_holder::text, 'null'), coalesce(p_seconds::text, 'null'));
    end if;
    perform set_config('synchronous_commit', 'off', true);
    foreach v_post in array p_posts loop
        continue when forebay._holder(v_post) <> p_holder;
        v_register := forebay._register(v_post);
        if v_register is not null then
            perform setval(v_register,
                ((extract(epoch from clock_timestamp()) + p_seconds) * 1000)::bigint << 20 | p_holder);
        end if;
        v_held := v_held || v_post;
    end loop;
    return v_held;
end
$$;
