-- Drops last states of deleted objects; their guards stay as tombstones (rule P3).
--
-- KEYS  1 tombstones  2 deletion-times
-- ARGV  1 for how many ms they are kept; 0 drops all  2 most objects
-- Answer: how many were dropped.

local kept = tonumber(ARGV[1])
local latest = kept == 0 and '+inf' or string.format('%.0f', tonumber(now_milliseconds()) - kept)
local keys = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', latest, 'LIMIT', 0, ARGV[2])
for _, key in ipairs(keys) do
  redis.call('HDEL', KEYS[1], key)
  redis.call('ZREM', KEYS[2], key)
end
return #keys
