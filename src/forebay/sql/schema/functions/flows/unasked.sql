-- grant: worker

-- Note that the code of a kind did not ask for recorded steps, at the end of a flow: for the doctor,
-- which names flows that wait with such steps. When a kind has 100 names, no other is noted.
--
-- Errors: JQ001 a bad name.
-- Transaction: any; meant to be autocommitted.
-- pages: 20 + 4 a step
create function forebay.note_unasked_v1(p_kind text, p_names text[]) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
begin
    if p_kind !~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$' or p_names is null
       or exists (select from unnest(p_names) n where (length(n) between 1 and 200 and n !~ E'[{control}]') is not true) then
        raise exception using errcode = 'JQ001', message = 'a kind or a step is not a name',
            hint = 'Nothing was noted. A step has 1 to 200 characters, none of them a control character.';
    end if;
    insert into forebay.unasked_step as u (kind, name, noted_at)
    select p_kind, n.name, forebay._now()
    from (select distinct i.name from unnest(p_names) i (name)) n
    where exists (select from forebay.unasked_step i where i.kind = p_kind and i.name = n.name)
       or (select count(*) from forebay.unasked_step i where i.kind = p_kind) < 100
    order by n.name
    on conflict on constraint unasked_step_pkey do update set noted_at = excluded.noted_at;
end
$$;
