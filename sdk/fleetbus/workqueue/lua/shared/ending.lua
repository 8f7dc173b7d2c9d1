-- Ending leases (rules Q1, Q4): an item that is dirty again becomes ready. Before that it stores what
-- their runs have read and how they ended (rules P8, Q12). A part of the scripts that do.
--
-- `end_runs(at, added)` reads from ARGV[at]: the number of items, of rows of reads and of rows of last runs,
-- and of the keys from 25 on that belong to it; then for each item: item, fence, note (an empty one
-- removes the last one), the version of its own object that the run has read, or ''; then those rows. Its first two keys are those of last_runs.lua, the others
-- those of record_read.lua.
-- `added` has the places of the items that the script adds. `write_records` has to follow.
-- It returns the indices, from 0, of the items that are refused, and where the next argument is.

-- A run that ends without counted failures was a success: its cluster answers (Q9).
local function end_outage(item)
  local cluster = cluster_of(item)
  if not read_outage(cluster) or call('HEXISTS', ATTEMPTS, item) == 1 then return end
  call('HDEL', OUTAGES, cluster)
  close_breaker(cluster)
end

local function slice(list, first, last)  -- unpack() refuses more than 8,000
  local part = {}
  for at = first, last do part[at - first + 1] = list[at] end
  return part
end

-- What the items have in PROCESSING that this script is about, read together.
local processing = {}

local function load_processing(places)
  if #places == 0 then return end
  local names = {}
  for i, at in ipairs(places) do names[i] = ARGV[at] end
  local values = call('HMGET', PROCESSING, unpack(names))
  for i, name in ipairs(names) do processing[name] = values[i] end
end

-- The places, from `first` on, of so many items that have so many arguments each; added to a list.
local function places_of(first, count, width, places)
  for n = 0, count - 1 do places[#places + 1] = first + width * n end
  return places
end

-- Of each item the places are known of its arguments: item, fence, note, read. Those whose lease is held
-- under this fence, and the indices of the others.
local function split_refused(first, items)
  local ended, refused = {}, {}
  for n = 0, items - 1 do
    local at = first + 4 * n
    local item = ARGV[at]
    if has_fence(processing[item], ARGV[at + 1]) then
      ended[#ended + 1], processing[item] = at, false
    else
      refused[#refused + 1] = n
    end
  end
  return ended, refused
end

local function leave_notes(ended)
  local notes, times, without = {}, {}, {}
  for _, at in ipairs(ended) do
    local item, note = ARGV[at], ARGV[at + 2]
    if note ~= '' then
      notes[#notes + 1], notes[#notes + 2] = item, note
      times[#times + 1], times[#times + 2] = whole(NOW), item
    else
      without[#without + 1] = item
    end
  end
  if #without > 0 and FOUND > 0 and call('EXISTS', NOTES) == 1 then
    call('HDEL', NOTES, unpack(without))
    call('ZREM', NOTED, unpack(without))
  end
  has_notes = #notes > 0
  if has_notes then
    call('HSET', NOTES, unpack(notes))
    call('ZADD', NOTED, unpack(times))
  end
end

-- The next run must not be given a state that is older than what this one has read (rule P10).
local function forget_older_trigger(item, read)
  local trigger = read ~= '' and call('HGET', TRIGGERS, item)
  if trigger and is_older(trigger, read) then call('HDEL', TRIGGERS, item) end
end

local function make_ready_again(ended, names)
  local dirty = FOUND > 0 and call('HMGET', DIRTY, unpack(names)) or {}
  for i, item in ipairs(names) do
    if dirty[i] then
      forget_older_trigger(item, ARGV[ended[i] + 3])
      make_ready(item, parse_dirty(dirty[i]))
    end
    local is_waiting = not has_causes or dirty[i] or call('ZSCORE', DELAYED, item)
    if not is_waiting then call('HDEL', CAUSES, item) end
  end
end

local function end_finished(ended)
  local names, fences = {}, {}
  for i, at in ipairs(ended) do
    names[i], fences[i] = ARGV[at], ARGV[at + 1]
    if has_outages then end_outage(names[i]) end
  end
  end_leases(names, fences)
  if has_rare(RECLAIMS) then call('HDEL', RECLAIMS, unpack(names)) end  -- their owner survived (Q7)
  leave_notes(ended)
  make_ready_again(ended, names)
end

local function end_runs(at, added)
  local items, reads, runs = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local last_key = 24 + tonumber(ARGV[at + 3])
  local first = at + 4
  local first_read = first + 4 * items
  local first_run = first_read + reads
  load_processing(places_of(first, items, 4, added))
  if reads > 0 then
    local hashes, rows = slice(KEYS, 27, last_key), slice(ARGV, first_read, first_run - 1)
    want_records(hashes, rows, 6)
    note_reads(hashes, rows)
  end
  if runs > 0 then
    note_last_runs(KEYS[25], KEYS[26], slice(ARGV, first_run, first_run + runs - 1))
  end
  local ended, refused = split_refused(first, items)
  if #ended > 0 then end_finished(ended) end
  return refused, first_run + runs
end
