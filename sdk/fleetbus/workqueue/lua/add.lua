-- Add (rule Q1): marks items dirty, and stores in the same step what a controller has seen of the
-- objects that caused them (rule P8). Before that ends leases, as `done` does: one call for what both
-- would do. Then takes for a waiting taker of the same process.
--
-- Keys: all; from 25 on those of ending.lua, then those of record_save.lua, if there are any rows
-- ARGV  2 the number of items  3 the number of rows of records; then for each item: item, band,
--       trigger, trace, cause or '', the number of the object whose record it depends on, or 0; then
--       those rows, as in record_save.lua; then, as `end_runs`; then, if the process has a waiting
--       taker, as `take_items`
-- Answer: {the objects that another process has written meanwhile: of them nothing was added or
-- stored; the indices of refused leases; of `take_items`, or nothing if it was not called}.

local ITEMS, ROWS = tonumber(ARGV[2]), tonumber(ARGV[3])
local RECORDS = 4 + 6 * ITEMS
local ENDING = RECORDS + ROWS

local refused, rest = end_runs(ENDING)
local hashes, rows, conflicts, is_conflict = {}, {}, {}, {}
if ROWS > 0 then
  hashes = slice(KEYS, 25 + tonumber(ARGV[ENDING + 3]), #KEYS)
  rows = slice(ARGV, RECORDS, ENDING - 1)
  conflicts, is_conflict = find_conflicts(hashes, rows)
end
for n = 0, ITEMS - 1 do
  local i = 4 + 6 * n
  if not is_conflict[tonumber(ARGV[i + 5])] then
    assign_flow(ARGV[i], ARGV[i + 4])
    -- One microsecond apart, so that a batch keeps its order.
    mark_dirty(ARGV[i], tonumber(ARGV[i + 1]), NOW + n, ARGV[i + 2])
    remember_trace(ARGV[i], ARGV[i + 3])
  end
end
-- Last: should this script ever break off, the records are not ahead of the queue.
if ROWS > 0 then save_records(hashes, rows, is_conflict) end
local taken = take_for_waiting(rest)
notify_takers()
return {conflicts, refused, taken}
