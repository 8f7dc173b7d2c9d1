-- Drops last states of deleted objects; their guards stay as tombstones (rule P3).
--
-- KEYS  1 tombstones  2 deletion-times
-- ARGV  1 the latest time of deletion, in ms or `+inf`  2 most objects
-- Answer: how many were dropped.

local keys = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, key in ipairs(keys) do
  redis.call('HDEL', KEYS[1], key)
  redis.call('ZREM', KEYS[2], key)
end
return #keys
