-- Closes the versions of a shard up to now: every later change gets a higher one (rule A5).
--
-- KEYS  1 generation  2 counter
-- ARGV  1 shard  2 number of shards  3 a version that is closed in another shard, or 0
-- Answer: {the generation or false, the version up to which the shard is closed, 1 if it is ahead of
--          the server's clock}.

local generation = redis.call('GET', KEYS[1])
if not generation or not is_of(generation, ARGV[2]) then return {generation, '0', 0} end
local closed, is_ahead = raise_counter(KEYS[2], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]))
return {generation, string.format('%.0f', closed), is_ahead and 1 or 0}
