-- Ending leases (rules Q1, Q4): an item that is dirty again becomes ready. Before that it stores what
-- their runs have read and how they ended (rules P8, Q12). A part of the scripts that do.
--
-- `end_runs(at)` reads from ARGV[at]: the number of items, of rows of reads and of rows of last runs,
-- and of the keys from 25 on that belong to it; then for each item: item, fence, note (an empty one
-- removes the last one); then those rows. Its first two keys are those of last_runs.lua, the others
-- those of record_read.lua.
-- It returns the indices, from 0, of the items that are refused, and where the next argument is.

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

local function slice(list, first, last)
  return {unpack(list, first, last)}
end

local function end_run(item, fence, note)
  if has_outages then end_outage(item) end
  end_lease(item, fence)
  call('HDEL', RECLAIMS, item)  -- its owner has survived the run (Q7)
  leave_note(item, note)
  ready_if_dirty(item)
  local is_waiting = call('HEXISTS', DIRTY, item) == 1 or call('ZSCORE', DELAYED, item)
  if has_causes and not is_waiting then call('HDEL', CAUSES, item) end
end

local function end_runs(at)
  local items, reads, runs = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local last_key = 24 + tonumber(ARGV[at + 3])
  local first = at + 4
  local first_read = first + 3 * items
  local first_run = first_read + reads
  if reads > 0 then note_reads(slice(KEYS, 27, last_key), slice(ARGV, first_read, first_run - 1)) end
  if runs > 0 then
    note_last_runs(KEYS[25], KEYS[26], slice(ARGV, first_run, first_run + runs - 1))
  end
  local refused = {}
  for n = 0, items - 1 do
    local i = first + 3 * n
    if held_under(ARGV[i], ARGV[i + 1]) then
      end_run(ARGV[i], ARGV[i + 1], ARGV[i + 2])
    else
      refused[#refused + 1] = n
    end
  end
  return refused, first_run + runs
end
