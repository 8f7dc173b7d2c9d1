-- Sets up an empty shard (rule P13).
--
-- KEYS  1 generation  2 feed generation  3 feed  4 counter
-- ARGV  1 a fresh generation  2 a fresh feed generation  3 shard  4 number of shards
-- Answer: {the generation, 1 if it is the fresh one}.

if redis.call('SET', KEYS[1], ARGV[1], 'NX') then
  renew_feed(KEYS[3], KEYS[2], KEYS[4], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]))
end
local held = redis.call('GET', KEYS[1])
return {held, held == ARGV[1] and 1 or 0}
