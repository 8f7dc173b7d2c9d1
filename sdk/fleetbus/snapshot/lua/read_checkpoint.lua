-- Reads the identity of the server and an offset checkpoint. If the server is not the one that the
-- feed belongs to, invalidates every feed position issued so far (rules P11, P13).
--
-- KEYS  1 generation  2 feed generation  3 feed  4 counter  5 store  6 checkpoint
-- ARGV  1 a fresh feed generation
-- Answer: {identity, generation or false, the checkpoint's stream, low, floor, run, born, breaks}

local GENERATION, FEED_GENERATION, FEED, COUNTER = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local STORE, CHECKPOINT = KEYS[5], KEYS[6]

local function renew_feed()
  local clock = redis.call('TIME')
  local ahead = clock[1] * 1000000 + clock[2] - tonumber(redis.call('GET', COUNTER) or 0)
  redis.call('UNLINK', FEED)
  redis.call('INCRBY', COUNTER, string.format('%.0f', math.max(ahead, 1)))
  redis.call('SET', FEED_GENERATION, ARGV[1])
end

local found = redis_identity()
local generation = redis.call('GET', GENERATION)
if generation then
  local held = redis.call('HGET', STORE, 'run')
  if (held and held ~= found) or redis.call('EXISTS', FEED_GENERATION) == 0 then renew_feed() end
  if held ~= found then redis.call('HSET', STORE, 'run', found) end
end
local fields = redis.call('HMGET', CHECKPOINT, 'stream', 'low', 'floor', 'run', 'born', 'breaks')
return {found, generation, unpack(fields)}
