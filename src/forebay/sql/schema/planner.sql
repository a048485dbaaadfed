-- Planner settings by name. A function takes one of these sets with a line among its settings: `-- planner: hot`.
-- Why: docs/decisions/0007-no-jit-no-sequential-scans-on-the-hot-path.md.

-- short: compiling these statements would take longer than running them.
set jit = off

-- indexed: rows are found by index, even if the statistics date from an empty table.
set enable_seqscan = off
set jit = off

-- in order: like indexed, and rows are read in the order of the index.
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off

-- in steps: like in order, and only rows with equal keys are sorted, never all that are left.
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_sort = off

-- by number: rows of the log are found by the index on numbers, by bitmaps alone; the planner must not prefer all entries of another index.
set enable_seqscan = off
set jit = off
set enable_bitmapscan = on
set cpu_index_tuple_cost = 100

-- no bitmap: an index finds the few rows of each key, in the order of the index.
set enable_bitmapscan = off

-- hot: like in order, with one plan for each session.
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan

-- arrays: arrays of a thousand elements are joined without nested loops; an index look-up behind OFFSET 0 remains one.
set enable_nestloop = off
set jit = off
set plan_cache_mode = force_generic_plan

-- folds: like hot, and rows are grouped by hashing them, since a sort of texts costs more than all the rest.
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_sort = off
set plan_cache_mode = force_generic_plan
