-- Add what was read in a window, v_window, to what a claim has read.

v_rows := v_rows || v_window.rows;
v_segments := v_segments || v_window.segments;
v_looked := v_looked + v_window.looked;
v_bytes := v_bytes + v_window.bytes;
