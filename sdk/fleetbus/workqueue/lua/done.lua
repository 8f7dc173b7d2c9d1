-- Done (rules Q1, Q4): ends leases; an item that is dirty again becomes ready. Before that, in the same
-- step, stores what their runs have read and how they ended (rules P8, Q12). Then takes for a waiting
-- taker of the same process.
--
-- Keys: all; 25 and 26 are those of last_runs.lua, from 27 on those of record_read.lua, if there are
--       any rows
-- ARGV  2 the number of items  3 the number of rows of reads  4 the number of rows of last runs; then
--       for each item: item, fence, note; an empty note removes the last one (rule Q12); then those
--       rows; then, if the process has a waiting taker, as `take_items`
-- Answer: {the indices, from 0, of those that are refused; of `take_items`, or nothing if it was not
-- called}.

local has_notes = call('EXISTS', NOTES) == 1

local function leave_note(item, note)
  if note ~= '' then
    call('HSET', NOTES, item, note)
    call('ZADD', NOTED, whole(NOW), item)
  elseif has_notes then
    call('HDEL', NOTES, item)
    call('ZREM', NOTED, item)
  end
end

-- A run that ends without counted failures was a success: its cluster answers (Q9).
local function end_outage(item)
  local cluster = cluster_of(item)
  if not read_outage(cluster) or call('HEXISTS', ATTEMPTS, item) == 1 then return end
  call('HDEL', OUTAGES, cluster)
  close_breaker(cluster)
end

local ITEMS, READS, RUNS = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local FIRST_READ = 5 + 3 * ITEMS
local FIRST_RUN = FIRST_READ + READS

local function slice(list, first, last)
  return {unpack(list, first, last)}
end

if READS > 0 then
  note_reads(slice(KEYS, 27, #KEYS), slice(ARGV, FIRST_READ, FIRST_RUN - 1))
end
if RUNS > 0 then
  note_last_runs(KEYS[25], KEYS[26], slice(ARGV, FIRST_RUN, FIRST_RUN + RUNS - 1))
end
local refused = {}
for n = 0, ITEMS - 1 do
  local i = 5 + 3 * n
  local item, fence, note = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if held_under(item, fence) then
    if has_outages then end_outage(item) end
    end_lease(item, fence)
    call('HDEL', RECLAIMS, item)  -- its owner has survived the run (Q7)
    leave_note(item, note)
    ready_if_dirty(item)
    local is_waiting = call('HEXISTS', DIRTY, item) == 1 or call('ZSCORE', DELAYED, item)
    if has_causes and not is_waiting then call('HDEL', CAUSES, item) end
  else
    refused[#refused + 1] = n
  end
end
local taken = take_for_waiting(FIRST_RUN + RUNS)
notify_takers()
return {refused, taken}
