-- Jobs with limit keys in ranges of transactions, which are in order, after a position: runs of one key and one transaction, in the
-- order (xid, seq), from about p_most rows. The last run is read to its end, up to 100,000 jobs.
create function forebay._read_limited_{segment}(
    p_segment_id bigint, p_lane bigint, p_ranges forebay._xid_range[], p_pos_xid xid8, p_pos_seq bigint, p_most integer)
returns forebay._limit_item[]
language plpgsql stable
as $$
declare
    v_items forebay._limit_item[];
    v_read  bigint;
    v_last  forebay._limit_item;
    v_more  record;
begin
    select array_agg(row(p_lane, p_segment_id, i.xid, i.seq, i.seq_to, i.jobs, i.limit_key, i.turn)::forebay._limit_item order by i.nr),
           sum(greatest(i.jobs, 1))
    into v_items, v_read
    from (select x.xid, min(x.seq) as seq, max(x.seq) as seq_to, count(*) filter (where x.is_job) as jobs, x.limit_key,
                 max(x.attempt) filter (where not x.is_job) as turn, min(x.nr) as nr
          from (select r.*, r.nr - row_number() over (partition by r.xid, r.limit_key, r.is_job order by r.nr) as run
                from (select l.xid, l.seq, l.limit_key, l.kind <> '' as is_job, l.attempt,
                             row_number() over (order by l.xid, l.seq) as nr
                      from (select unnest(p_ranges) as xids) r, lateral (
                          select i.xid, i.seq, i.limit_key, i.kind, i.attempt
                          from forebay.log_{segment} i
                          where i.lane = p_lane
                            and (i.xid, i.seq) > (greatest((r.xids).low, p_pos_xid), case when p_pos_xid >= (r.xids).low then p_pos_seq else -1 end)
                            and i.xid < (r.xids).high
                          order by i.xid, i.seq
                          limit p_most) l
                      order by l.xid, l.seq
                      limit p_most) r) x
          -- Each recheck row is one item.
          group by x.xid, x.limit_key, x.is_job, x.run, case when not x.is_job then x.nr end) i;
    if v_read >= p_most then
        v_last := v_items[cardinality(v_items)];
        if v_last.jobs > 0 then
            select count(*) as jobs, max(u.seq) as seq_to into v_more
            from (select i.seq from forebay.log_{segment} i
                  where i.lane = p_lane and i.xid = v_last.xid and i.seq > v_last.seq_to
                    and i.seq < coalesce((select f.seq from forebay.log_{segment} f
                                          where f.lane = p_lane and f.xid = v_last.xid and f.seq > v_last.seq_to
                                            and (f.limit_key is distinct from v_last.limit_key or f.kind = '')
                                          order by f.seq limit 1), 9223372036854775807)
                  order by i.seq limit 100000) u;
            v_last.jobs := v_last.jobs + v_more.jobs;
            v_last.seq_to := coalesce(v_more.seq_to, v_last.seq_to);
            v_items[cardinality(v_items)] := v_last;
        end if;
    end if;
    return coalesce(v_items, '{}');
end
$$;
