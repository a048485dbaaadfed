-- A column of a query that has the end of the newest sealed segment as f.hi: the segments that are not sealed, in their order.

array(select s.segment_id from forebay.segment s
      where s.lo >= coalesce(f.hi, 0) and s.lo <= coalesce(pg_sequence_last_value('forebay.log_seq'), 0)
      order by s.lo) as unsealed,
