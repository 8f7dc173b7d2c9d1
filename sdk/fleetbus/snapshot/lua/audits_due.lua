-- Reads the audits of a shard whose list the low-water mark passed long enough ago (rule P15).
--
-- KEYS  1 audits that are due
-- ARGV  1 how long ago, in ms
-- Answer: the audits, as in the key.

local latest = string.format('%.0f', tonumber(now_milliseconds()) - tonumber(ARGV[1]))
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', latest)
