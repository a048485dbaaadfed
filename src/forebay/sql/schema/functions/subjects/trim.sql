-- Delete rows of subjects that newer ones superseded a day ago or earlier, from a stored position on; see docs/design/subjects.md.
create function forebay._trim_subject_states(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
-- planner: in order
as $$
declare
    v_from constant bigint := coalesce(pg_sequence_last_value('forebay.subject_trim_seq'), 0);
    v_seen record;
begin
    rows := 0;
    select count(*) as rows, max(i.row_no) as last, array_agg(i.subject_id) as subjects, array_agg(i.no) as numbers, array_agg(i.part) as parts,
           array_agg(i.is_gone) as gone
    into v_seen
    from (select s.subject_id, s.no, s.part, s.row_no,
                 not exists (select from forebay.subject o where o.subject_id = s.subject_id) as is_gone
          from (select * from forebay.subject_state a where a.row_no > v_from order by a.row_no limit p_most) s
          where s.at < forebay._now() - interval '1 day') i;
    if v_seen.rows = 0 then
        return;
    end if;
    delete from forebay.subject_state s
    where s.ctid = any (array(
        select o.ctid from unnest(v_seen.subjects, v_seen.numbers, v_seen.parts, v_seen.gone) u (subject_id, no, part, is_gone)
        cross join lateral (select i.ctid from forebay.subject_state i
                            where i.subject_id = u.subject_id and ((i.no, i.part) < (u.no, u.part) or u.is_gone) offset 0) o));
    get diagnostics rows = row_count;
    perform setval('forebay.subject_trim_seq', v_seen.last);
    next := case when v_seen.rows >= p_most then '[]' end;
end
$$;


-- Add up the changes of the number of subjects.
create function forebay._trim_subject_counts(p_after text, p_most integer, out rows bigint, out next text)
language plpgsql volatile
as $$
begin
    with gone as (
        delete from forebay.subject_count c
        where c.ctid = any (array(select i.ctid from forebay.subject_count i limit p_most))
        returning c.queue, c.state, c.before, c.subjects),
    added as (
        insert into forebay.subject_count (queue, state, subjects)
        select g.queue, u.state, sum(u.subjects)
        from gone g cross join lateral (values (g.state, g.subjects), (g.before, -g.subjects)) u (state, subjects)
        where u.state is not null group by g.queue, u.state having sum(u.subjects) <> 0
        returning 1)
    select (select count(*) from gone) - (select count(*) from added) into rows;
end
$$;
