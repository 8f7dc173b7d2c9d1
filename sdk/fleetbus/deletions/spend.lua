-- Spends budget for deletions, for all of them or none.
--
-- KEYS  1 ZSET of deletions by the time in ms at which they were granted
-- ARGV  1 window in ms  2 deletions that the fleet allows per window; of this owner: 3 its prefix
--       4 clusters from which on it is held  5 most objects  6 most percent  7 objects on record
--       8 1 to spend, 0 to only answer; then for each deletion its member `<owner's uid>|<cluster>|<object>`, with a `~` before an
--       object that is created again, so that it stays on record
-- Answer: {decision, deletions in the window before}: 0 granted, 1 limit of the owner, 2 of the fleet.
local key, window, fleet = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local prefix = ARGV[3]
local most = {
  clusters = tonumber(ARGV[4]), objects = tonumber(ARGV[5]), percent = tonumber(ARGV[6]),
}
local on_record = tonumber(ARGV[7])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

redis.call('ZREMRANGEBYSCORE', key, '-inf', now - window)
-- If the clock went back, no entry may stay for longer than the window.
for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. now, '+inf')) do
  redis.call('ZADD', key, now, member)
end

local clusters, count = {}, 0
local function add(member)
  local cluster = string.match(member, '^[^|]*|([^|]*)|')
  if not clusters[cluster] then
    clusters[cluster] = true
    count = count + 1
  end
end

local function is_for_good(member)
  return not string.match(member, '^[^|]*|[^|]*|~')
end

local granted = redis.call('ZRANGE', key, 0, -1)
local own, gone = 0, 0
for _, member in ipairs(granted) do
  if string.sub(member, 1, #prefix) == prefix then
    own = own + 1
    if is_for_good(member) then gone = gone + 1 end
    add(member)
  end
end

local new = {}
for at = 9, #ARGV do
  add(ARGV[at])
  if redis.call('ZSCORE', key, ARGV[at]) then
    -- Granted before, to a round that did not finish: the object is still on record.
    if is_for_good(ARGV[at]) then gone = gone - 1 end
  else
    new[#new + 1] = ARGV[at]
  end
end

if #new == 0 then
  return {0, #granted}
end
local objects, total = own + #new, on_record + gone
if count >= most.clusters or objects > most.objects or objects * 100 > most.percent * total then
  return {1, #granted}
end
if #granted + #new > fleet then
  return {2, #granted}
end
for _, member in ipairs(ARGV[8] == '1' and new or {}) do
  redis.call('ZADD', key, now, member)
end
return {0, #granted}
