-- Marks an epoch as swept or held, unless its scope is gone.
--
-- KEYS  1 epochs of the scope
-- ARGV  1 field: `swept` or `held`  2 rank
-- Answer: 0 if the scope is gone, else as HSET.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
