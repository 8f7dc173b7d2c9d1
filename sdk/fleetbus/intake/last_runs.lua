#!lua flags=allow-oom
-- Store how the last run of each request ended (rule Q12).
--
-- KEYS: hash item -> run; zset item -> when it ended, in microseconds.
-- ARGV: most items that are kept; then per item: its name, when it ended, the run.

local limit = tonumber(ARGV[1])
for at = 2, #ARGV, 3 do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 2])
  redis.call('ZADD', KEYS[2], ARGV[at + 1], ARGV[at])
end
local over = redis.call('ZCARD', KEYS[2]) - limit
if over > 0 then
  local oldest = redis.call('ZPOPMIN', KEYS[2], over)
  for at = 1, #oldest, 2 do
    redis.call('HDEL', KEYS[1], oldest[at])
  end
end
return 0
