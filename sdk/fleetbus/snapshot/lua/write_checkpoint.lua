-- Writes an offset checkpoint if store and checkpoint are still those it was computed from: on
-- another server the effects that it vouches for may be missing (rule P11).
--
-- KEYS  1 checkpoint; beside a shard of the snapshot also  2 generation
-- ARGV  1 identity  2 generation or ''  3 held stream or ''  4 held low or ''
--       5 stream  6 low  7 floor  8 born, or '' to keep it  9 breaks to add
-- Answer: 1 written, 0 something has changed.

local CHECKPOINT, GENERATION = KEYS[1], KEYS[2]

if redis_identity() ~= ARGV[1] then return 0 end
if GENERATION and redis.call('GET', GENERATION) ~= ARGV[2] then return 0 end
local held = redis.call('HMGET', CHECKPOINT, 'stream', 'low')
if (held[1] or '') ~= ARGV[3] or (held[2] or '') ~= ARGV[4] then return 0 end
redis.call('HSET', CHECKPOINT, 'stream', ARGV[5], 'low', ARGV[6], 'floor', ARGV[7], 'run', ARGV[1])
if ARGV[8] ~= '' then redis.call('HSET', CHECKPOINT, 'born', ARGV[8]) end
if ARGV[9] ~= '0' then redis.call('HINCRBY', CHECKPOINT, 'breaks', ARGV[9]) end
return 1
