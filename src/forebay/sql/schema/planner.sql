-- Planner settings by name. A function has those of a set by one line among its own settings: `-- planner: hot`.
-- Why: docs/decisions/0007-no-jit-no-sequential-scans-on-the-hot-path.md.

-- short: the statements are too short for what compiling them costs.
set jit = off

-- indexed: rows are found by an index, whatever statistics say that were gathered while the table was empty.
set enable_seqscan = off
set jit = off

-- in order: as indexed, and rows are read in the order of the index.
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off

-- no bitmap: a few rows of each key are found by its index, in its order.
set enable_bitmapscan = off

-- hot: as in order, with a plan that is made once a session.
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan

-- arrays: arrays of a thousand are joined with each other; a look-up by index, behind OFFSET 0, stays one.
set enable_nestloop = off
set jit = off
