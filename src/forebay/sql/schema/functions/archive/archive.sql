-- grant: worker

-- Summarize blocks of the log for searches, at most `p_most`; returns how many. Call again while it
-- returns `p_most`. A block is summarized when all transactions with its numbers have ended.
--
-- Errors: JQ001 a bad number, JQ012 not called alone, JQ030 foreign cluster.
-- Transaction: alone.
-- Locks: the archive lock.
--
-- Inside: Invariant "no row is missed": a block is summarized when each transaction that has drawn
-- one of its numbers has ended. A row draws its transaction id before its number: so all numbers up
-- to the last one, read first, belong to ids below the one that this call draws afterwards. Both
-- are recorded; a later call sees whether all ids below have ended.
-- pages: 300 + 3000 a block
create function forebay.archive_v1(p_most integer default 8) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
declare
    v_size     constant bigint := 4096;
    v_last     constant bigint := coalesce(pg_sequence_last_value('forebay.log_seq'), 0);  -- Before this call draws a transaction id.
    v_position bigint;
    v_safe     bigint;
    v_segment  record;
    v_end      bigint;
    v_made     integer := 0;
begin
    if (p_most between 1 and 1000) is not true then
        raise exception using errcode = 'JQ001', column = 'most', message = format('most %s is outside 1 to 1000', coalesce(p_most::text, 'null'));
    end if;
    perform forebay._require_alone('forebay.archive_v1()');
    perform forebay._require_same_cluster();
    if not forebay._try_lock('archive') then
        return 0;
    end if;
    v_position := forebay._archived_up_to();
    v_safe := greatest(
        (select max(m.hi) from forebay.archive_mark m where m.xid < pg_snapshot_xmin(pg_current_snapshot())), forebay._archived_below());
    while v_made < p_most loop
        select s.segment_id, s.lo, s.hi into v_segment from forebay.segment s
        where s.hi > v_position and s.removed_at is null and forebay._has_table(s.segment_id) order by s.hi limit 1;
        exit when not found;
        v_position := greatest(v_position, v_segment.lo);
        -- A segment that an adoption has jumped over is one block.
        v_end := case when pg_relation_size(format('forebay.log_%s', v_segment.segment_id)::regclass) = 0 then v_segment.hi
                      else least(v_position + v_size, v_segment.hi) end;
        exit when v_end > coalesce(v_safe, 0);
        perform forebay._summarize_block(v_segment.segment_id, v_position, v_end);
        v_position := v_end;
        v_made := v_made + 1;
    end loop;
    if v_last + 1 >= v_end and v_last + 1 > coalesce((select max(m.hi) from forebay.archive_mark m), 0) then
        insert into forebay.archive_mark (hi, xid) values (v_last + 1, pg_current_xact_id());
    end if;
    if v_made > 0 then
        perform forebay._know_pages(b.segment_id)
        from (select distinct i.segment_id from forebay.archive_block i order by 1 desc limit 2) b;
        delete from forebay.archive_mark m where m.hi <= v_position;
        delete from forebay.archive_block b where b.lo in (
            select i.lo from forebay.archive_block i
            where i.lo < (select min(s.lo) from forebay.segment s where s.removed_at is null)
            union all
            select i.lo from forebay.segment s join forebay.archive_block i on i.lo >= s.lo and i.lo < s.hi where s.removed_at is not null
            limit 1000);
    end if;
    return v_made;
end
$$;


-- Let the index of a segment's numbers know which pages have which: a search would read those that it does not know for each block anew.
-- Vacuum does the same, and is not ended by a session that waits for its lock.
create function forebay._know_pages(p_segment_id bigint) returns void
language plpgsql volatile
as $$
begin
    execute format('lock table forebay.log_%s in share update exclusive mode nowait', p_segment_id);
    perform brin_summarize_new_values(format('forebay.log_%s_seq_idx', p_segment_id)::regclass);
exception
    when lock_not_available or undefined_table then
        null;
end
$$;


-- Numbers below this one are summarized, or belong to segments that were emptied.
create function forebay._archived_up_to() returns bigint
language sql stable
as $$
    select greatest((select b.hi from forebay.archive_block b order by b.lo desc limit 1),
                    (select s.lo from forebay.segment s where s.removed_at is null order by s.lo limit 1), 1)
$$;


-- The job that enqueued a job, by its headers: its handler did, or it waits for its end. Null: none. Headers can be forged.
create function forebay._parent_of(p_headers jsonb) returns bigint
language sql immutable
as $$
    select coalesce(substring(p_headers ->> 'forebay-parent' from '^[0-9]{1,18}$'),
                    substring(p_headers ->> 'forebay-parent' from '^[{]"nr": [0-9]{1,9}, "job": ([0-9]{1,18}), "gather": "[0-9]{1,19}"[}]$'))::bigint
$$;


-- The hash of what a job has: a kind, tag, correlation id, key, subject, or parent.
create function forebay._term(p_name text, p_value text) returns integer
language sql immutable
as $$ select hashtext(p_name || ':' || p_value collate "C") $$;


-- Write the summary of a block whose transactions have ended.
create function forebay._summarize_block(p_segment_id bigint, p_lo bigint, p_hi bigint) returns void
language plpgsql volatile
as $$
begin
    execute format(
        'with r as materialized (
             select j.enqueued_at, j.kind, j.tag, j.correlation_id, j.ordering_key, j.limit_key, j.unique_key, case when j.headers ? ''forebay-subject'' then forebay._subject_of(j.headers) end as subject,
                    case when j.headers ? ''forebay-parent'' then forebay._parent_of(j.headers)::text end as parent
             from forebay.log_%s j where j.seq >= $1 and j.seq < $2 and j.kind <> '''')
         insert into forebay.archive_block (lo, hi, segment_id, row_count, first_at, last_at, terms)
         select $1, $2, $3, count(*), min(r.enqueued_at), max(r.enqueued_at), array(
             select forebay._term(u.name, u.value)
             from (select ''kind'', i.kind from r i
                   union select ''tag'', i.tag from r i where i.tag is not null
                   union select ''correlation_id'', i.correlation_id from r i where i.correlation_id is not null
                   union select ''ordering_key'', i.ordering_key from r i where i.ordering_key is not null
                   union select ''limit_key'', i.limit_key from r i where i.limit_key is not null
                   union select ''unique_key'', i.unique_key from r i where i.unique_key is not null
                   union select ''subject'', i.subject from r i where i.subject is not null
                   union select ''parent'', i.parent from r i where i.parent is not null) u (name, value))
         from r', p_segment_id) using p_lo, p_hi, p_segment_id;
end
$$;
