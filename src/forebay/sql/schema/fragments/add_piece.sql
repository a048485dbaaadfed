-- Add the rows that were read in one segment, v_piece, to those of the window; a full window ends the loop over segments.

if cardinality(v_piece.rows) > 0 then
    rows := rows || v_piece.rows;
    bytes := bytes + v_piece.bytes;
    segments := segments || array_fill(v_segment, array[cardinality(v_piece.rows)]);
    exit when cardinality(rows) >= p_limit or bytes >= p_bytes;
end if;
