-- The register of a post; null when there is none.
create function forebay._register(p_post bigint) returns regclass
language sql stable
as $$ select to_regclass('forebay."post_' || p_post::text || '"') $$;


-- Who holds a post now, a number below 2^20; null when nobody does, or it has no register.
--
-- A time too far ahead was written before the clock was set back.
create function forebay._holder(p_post bigint) returns integer
language plpgsql volatile
as $$
declare
    v_value constant bigint := pg_sequence_last_value(forebay._register(p_post));
begin
    if (v_value >> 20) - (extract(epoch from clock_timestamp()) * 1000)::bigint between 1 and 600000 then
        return (v_value & 1048575)::integer;
    end if;
    return null;
end
$$;
