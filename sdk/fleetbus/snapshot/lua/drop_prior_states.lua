-- Drops the first prior states of a shard, if they are still those that somebody has published.
--
-- KEYS  1 prior states
-- ARGV  1 the first one  2 how many
-- Answer: 1 if they were dropped, 0 if somebody else has dropped some meanwhile.

if redis.call('LINDEX', KEYS[1], 0) ~= ARGV[1] then return 0 end
redis.call('LTRIM', KEYS[1], ARGV[2], -1)
return 1
