-- grant: operator, reader

-- The jobs that have a row with a number from `first` to `last` in one segment, each once for the
-- segment: at its first row there. forebay.job() has their states.
--
-- Errors: JQ001 more than 10,000 numbers, or none.
create function forebay.jobs_to_export(segment_id bigint, first bigint, last bigint) returns setof bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
begin
    if (jobs_to_export.last::numeric - jobs_to_export.first between 0 and 9999) is not true then
        raise exception using errcode = 'JQ001', column = 'last',
            message = format('numbers %s to %s are not 1 to 10000 numbers', coalesce(first::text, 'null'), coalesce(last::text, 'null'));
    elsif not exists (select from forebay.segment s where s.segment_id = jobs_to_export.segment_id and s.removed_at is null) then
        return;
    end if;
    return query execute format(
        'select coalesce(j.job_id, j.seq) from forebay.log_%1$s j
         where j.seq >= $1 and j.seq <= $2 and j.kind <> ''''
           and (j.job_id is null
                or not exists (select from forebay.log_%1$s f where f.job_id = j.job_id and f.seq < j.seq)
                   and not exists (select from forebay.log_%1$s f where f.seq = j.job_id and f.job_id is null))
         order by j.seq', jobs_to_export.segment_id)
        using jobs_to_export.first, jobs_to_export.last;
end
$$;
