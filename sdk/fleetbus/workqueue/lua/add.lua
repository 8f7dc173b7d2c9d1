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

local hashes, rows, conflicts, is_conflict = {}, {}, {}, {}
if ROWS > 0 then
  hashes = slice(KEYS, 25 + tonumber(ARGV[ENDING + 3]), #KEYS)
  rows = slice(ARGV, RECORDS, ENDING - 1)
  want_records(hashes, rows, 5)
end
local refused, rest = end_runs(ENDING, places_of(4, ITEMS, 6, {}))
if ROWS > 0 then conflicts, is_conflict = find_conflicts(hashes, rows) end

-- A run that has read a newer state may have ended since the caller decided that these run: the next
-- one must not be given the older state (rule P10). What proves nothing any more is no such read.
local function forget_older_triggers()
  for n = 0, ITEMS - 1 do
    local at = 4 + 6 * n
    local object = tonumber(ARGV[at + 5])
    local row = #hashes + 5 * (object - 1)
    if object > 0 and rows[row + 3] ~= '1' then
      local read = split_record(read_record(hashes[tonumber(rows[row])], rows[row + 1]))
      if is_older(ARGV[at + 2], read) then ARGV[at + 2] = '' end
    end
  end
end

if ROWS > 0 then forget_older_triggers() end

local function add(at)
  assign_flow(ARGV[at], ARGV[at + 4])
  -- One microsecond apart, so that a batch keeps its order.
  mark_dirty(ARGV[at], tonumber(ARGV[at + 1]), NOW + (at - 4) / 6, ARGV[at + 2])
  remember_trace(ARGV[at], ARGV[at + 3])
end

-- Where the items are that are not in conflict; and whether all are different and none is charged
-- to another cluster.
local function places_of_items()
  local places, known, is_plain = {}, {}, true
  for n = 0, ITEMS - 1 do
    local at = 4 + 6 * n
    if not is_conflict[tonumber(ARGV[at + 5])] then
      if known[ARGV[at]] or ARGV[at + 4] ~= '' then is_plain = false end
      known[ARGV[at]] = true
      places[#places + 1] = at
    end
  end
  return places, is_plain
end

-- The same as `add` for each, with a few calls for all; only if all are different, and none is charged
-- to another cluster.
local function add_together(places)
  local names = {}
  for i, at in ipairs(places) do names[i] = ARGV[at] end
  local known = FOUND > 0 and call('HMGET', DIRTY, unpack(names)) or {}
  local triggers = FOUND > 0 and call('HMGET', TRIGGERS, unpack(names)) or {}
  local kept = has_rare(QUARANTINE) and call('ZMSCORE', QUARANTINE, unpack(names)) or {}
  local dirty, newer, traces, ready, flows = {}, {}, {}, {}, {}
  for i, at in ipairs(places) do
    local item, band, since = names[i], tonumber(ARGV[at + 1]), NOW + (at - 4) / 6
    if known[i] then
      add(at)
    else
      local trigger = newest(triggers[i], ARGV[at + 2])
      if trigger ~= (triggers[i] or '') then newer[#newer + 1], newer[#newer + 2] = item, trigger end
      if ARGV[at + 3] ~= '' then traces[#traces + 1], traces[#traces + 2] = item, ARGV[at + 3] end
      dirty[#dirty + 1], dirty[#dirty + 2] = item, band .. ' ' .. whole(since)
      if not processing[item] and not kept[i] then
        local flow = cluster_of(item)
        local key = ready_key(band, flow)
        if not ready[key] then
          ready[key] = {}
          flows[#flows + 1] = {key, band, flow}
        end
        local rows = ready[key]
        rows[#rows + 1], rows[#rows + 2] = whole(since), item
      end
    end
  end
  if #dirty > 0 then call('HSET', DIRTY, unpack(dirty)) end
  if #newer > 0 then call('HSET', TRIGGERS, unpack(newer)) end
  if #traces > 0 then call('HSET', TRACES, unpack(traces)) end
  for _, one in ipairs(flows) do
    local key, band, flow = unpack(one)
    call('ZADD', key, unpack(ready[key]))
    if call('ZCARD', key) == #ready[key] / 2 then enter(band, flow) end
  end
end

local function add_all(places, is_plain)
  if #places > 0 and is_plain and not has_causes then
    add_together(places)
  else
    for _, at in ipairs(places) do add(at) end
  end
end

-- Whether these items would be taken at once and in this order, without anything else.
local function is_all_there_is(places)
  if #places == 0 or rest > #ARGV or not WAS_IDLE or has_joined then return false end
  if has_outages or has_causes then return false end
  -- A taker that limits clusters by name may have no capacity for one of them.
  if #ARGV > rest + 4 then return false end
  read_limits(rest)
  if #places > math.min(LIMIT, DEFAULT) then return false end
  return FOUND == 0 or call('EXISTS', DELAYED, QUARANTINE) == 0
end

-- The same as to add and then to take them, with half of the calls: most items of a fleet that is
-- not busy go this way. Items that are processing become dirty.
local function take_directly(places)
  local items, dirty = {}, {}
  for _, at in ipairs(places) do
    if processing[ARGV[at]] then
      add(at)
    else
      items[#items + 1] = ARGV[at]
      dirty[#items] = {tonumber(ARGV[at + 1]), NOW + (at - 4) / 6, ARGV[at + 2], ARGV[at + 3]}
    end
  end
  if #items == 0 then return false end
  local fence, answer = lease(items, dirty, {})
  return answer_with(-1, false, fence, answer)
end

local places, is_plain = places_of_items()
local is_direct = is_plain and is_all_there_is(places)
local taken = false
if is_direct then
  taken = take_directly(places)
else
  add_all(places, is_plain)
end
-- Last: should this script ever break off, the records are not ahead of the queue.
if ROWS > 0 then save_records(hashes, rows, is_conflict) end
write_records()
if not is_direct then taken = take_for_waiting(rest) end
finish()
return {conflicts, refused, taken}
