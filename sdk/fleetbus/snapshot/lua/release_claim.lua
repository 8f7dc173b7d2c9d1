-- Releases the claim to a replay if it is still ours.
--
-- KEYS  1 claim
-- ARGV  1 our nonce
-- Answer: 1 released, 0 it was not ours.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
