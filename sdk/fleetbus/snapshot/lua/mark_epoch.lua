-- Notes something about an epoch, unless the scope has gone meanwhile.
--
-- KEYS  1 epochs of the scope
-- ARGV  1 field  2 rank

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
