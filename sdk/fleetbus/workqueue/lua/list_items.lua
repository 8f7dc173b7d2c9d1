-- Lists the items of each state, those that come first at the top.
--
-- Keys: turns, ready, delayed, leases, processing, quarantine, reclaims, attempts, breakers
-- ARGV  2 most items of each state
-- Answer: {processing, ready, blocked, delayed, quarantined}, each {how many there are, items}. An
-- item is {item, failures, microseconds, more}: until its lease ends, and the fence; since it was due,
-- and the band (ready and blocked); until it is due, and 0; until it is tried again, and the times
-- quarantined. A time that is over is negative.

local LIMIT = tonumber(ARGV[2])

local function failures_of(rows)
  if #rows == 0 then return rows end
  local names = {}
  for i, row in ipairs(rows) do names[i] = row[1] end
  for i, failures in ipairs(call('HMGET', ATTEMPTS, unpack(names))) do
    rows[i][2] = tonumber(failures or 0)
  end
  return rows
end

-- Inserts before the first later head; there are at most as many heads as flows.
local function insert(heads, head)
  local at = 1
  while heads[at] and heads[at].since <= head.since do at = at + 1 end
  table.insert(heads, at, head)
end

local function read_head(key, rank)
  local head = call('ZRANGE', key, rank, rank, 'WITHSCORES')
  if not head[1] then return nil end
  return {key = key, rank = rank, item = head[1], since = tonumber(head[2])}
end

-- The oldest items of a band in these flows: each step reads one item of one flow.
local function read_band(band, clusters, rows)
  local heads, total = {}, 0
  for _, cluster in ipairs(clusters) do
    local head = read_head(ready_key(band, cluster), 0)
    if head then
      total = total + call('ZCARD', head.key)
      heads[#heads + 1] = head
    end
  end
  table.sort(heads, function(a, b) return a.since < b.since end)
  while #rows < LIMIT and heads[1] do
    local head = table.remove(heads, 1)
    rows[#rows + 1] = {head.item, 0, math.max(0, NOW - head.since), band}
    local following = read_head(head.key, head.rank + 1)
    if following then insert(heads, following) end
  end
  return total
end

local function read_ready(clusters_of)
  local rows, total = {}, 0
  for band = 0, 2 do total = total + read_band(band, clusters_of(band), rows) end
  return {total, failures_of(rows)}
end

local function read_timed(key, more)
  local rows, found = {}, call('ZRANGE', key, 0, LIMIT - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    rows[#rows + 1] = {found[i], 0, tonumber(found[i + 1]) - NOW, more(found[i])}
  end
  return {call('ZCARD', key), failures_of(rows)}
end

local open = call('ZRANGE', BREAKERS, 0, -1)
return {
  read_timed(LEASES, function(item) return (parse_processing(call('HGET', PROCESSING, item))) end),
  read_ready(function(band) return call('ZRANGE', TURNS[band], 0, -1) end),
  read_ready(function() return open end),
  read_timed(DELAYED, function() return 0 end),
  read_timed(QUARANTINE, function(item)
    return tonumber(string.match(call('HGET', RECLAIMS, item) or '0:', '^%d+'))
  end),
}
