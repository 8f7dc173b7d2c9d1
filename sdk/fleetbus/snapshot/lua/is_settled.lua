-- Whether the projector vouches for the content of the server that answers (rule P11).
--
-- KEYS  1 the projector's offset checkpoint
-- Answer: 1 or 0.

local run = redis.call('HGET', KEYS[1], 'run')
return (not run or run == redis_identity()) and 1 or 0
