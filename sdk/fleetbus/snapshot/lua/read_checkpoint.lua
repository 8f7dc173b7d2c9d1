-- Reads the identity of the server and an offset checkpoint. If the server is not the one that the
-- feed belongs to, invalidates every feed position issued so far (rules P11, P13).
--
-- KEYS  1 checkpoint; beside a shard of the snapshot also
--       2 generation  3 feed generation  4 feed  5 counter  6 store
-- ARGV  1 a fresh feed generation  2 shard  3 number of shards
-- Answer: {identity, generation or false, the checkpoint's stream, low, floor, run, born, breaks}

local CHECKPOINT, GENERATION, FEED_GENERATION = KEYS[1], KEYS[2], KEYS[3]
local FEED, COUNTER, STORE = KEYS[4], KEYS[5], KEYS[6]

local found = redis_identity()
local generation = GENERATION and redis.call('GET', GENERATION)
if generation and is_of(generation, ARGV[3]) then
  local held = redis.call('HGET', STORE, 'run')
  local has_start = string.match(redis.call('GET', FEED_GENERATION) or '', '@%d+$')
  if (held and held ~= found) or not has_start then
    renew_feed(FEED, FEED_GENERATION, COUNTER, ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]))
  end
  if held ~= found then redis.call('HSET', STORE, 'run', found) end
end
local fields = redis.call('HMGET', CHECKPOINT, 'stream', 'low', 'floor', 'run', 'born', 'breaks')
return {found, generation or false, unpack(fields)}
