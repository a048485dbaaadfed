-- How many jobs a bucket lets start now: the burst, minus what it owes.
--
-- A bucket is one time, at which it will be full again: the "generic cell rate algorithm" (ITU-T I.371), which needs no
-- updates between two claims.
create function forebay._permits(p_tat timestamptz, p_rate double precision, p_burst integer, p_at timestamptz) returns bigint
language sql immutable
as $$
    select case when p_rate is null then 9223372036854775807
                else greatest(0, floor(coalesce(p_burst, ceil(p_rate))
                                       - greatest(0, coalesce(date_part('epoch', p_tat - p_at), 0)) * p_rate + 1e-6))::bigint end
$$;


-- The bucket after p_count more starts.
create function forebay._tat_after(p_tat timestamptz, p_rate double precision, p_at timestamptz, p_count integer) returns timestamptz
language sql immutable
as $$ select case when p_rate is not null then greatest(p_tat, p_at) + make_interval(secs => p_count / p_rate) end $$;


-- The bucket under a rate set at p_at: it owed no more then than it can hold.
create function forebay._tat_within(p_tat timestamptz, p_rate double precision, p_burst integer, p_at timestamptz) returns timestamptz
language sql immutable
as $$
    select case when p_rate is not null and p_tat is not null
                then least(p_tat, p_at + make_interval(secs => coalesce(p_burst, ceil(p_rate)) / p_rate)) end
$$;
