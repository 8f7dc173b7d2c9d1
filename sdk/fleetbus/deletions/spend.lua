-- Takes deletions out of the budget, all or none.
-- KEYS[1]: ZSET of deletions by the time in ms at which they were granted.
-- ARGV: window in ms, deletions granted to the whole fleet per window; of this owner: its prefix,
-- clusters from which on it is held, most objects, most percent, objects it has on record; then one
-- member per deletion, `<owner's uid>|<cluster>|<object>`; before the object stands a `~` if it is
-- created anew, so that it stays on record.
-- Answers {decision, deletions in the window before}: 0 granted, 1 limit of the owner, 2 of the fleet.
local key, window, fleet = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local prefix = ARGV[3]
local most = {
  clusters = tonumber(ARGV[4]), objects = tonumber(ARGV[5]), percent = tonumber(ARGV[6]),
}
local on_record = tonumber(ARGV[7])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

redis.call('ZREMRANGEBYSCORE', key, '-inf', now - window)
-- A clock that went back must not keep an entry for longer than the window.
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
for at = 8, #ARGV do
  add(ARGV[at])
  if redis.call('ZSCORE', key, ARGV[at]) then
    -- Granted before, to a round that did not finish: it is on record yet.
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
for _, member in ipairs(new) do
  redis.call('ZADD', key, now, member)
end
return {0, #granted}
