-- The identity of the server, and the counter of a shard as far as it follows the server's clock.
-- Precedes the scripts about feeds and offset checkpoints. Keys: only those passed to its functions.

-- Identifies the server and its history of writes. It changes with a restart, a promotion, or a
-- return to an earlier state; not with FLUSHALL (rule P11).
local function redis_identity()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  local history = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)')
  return (run or '') .. ' ' .. (history or '')
end

-- Whether a generation says that the snapshot has this many shards, in the format of this release; else
-- nothing may be written.
local function is_of(generation, shards)
  return string.match(generation, '/(%d+)$') == shards
end

-- Raises a shard's counter to the server's time in microseconds, or to `least` if that is more, and
-- returns it: every later version is higher, also if the clock goes back (rule A5). Then the counter is
-- ahead of the clock, as the second result tells. All versions of a shard are the same modulo the
-- number of shards, so that no two shards issue the same one.
local function raise_counter(counter_key, shard, shards, least)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local wanted = math.max(now, least)
  local held = tonumber(redis.call('GET', counter_key) or '-1')
  if held >= wanted then return held, held > now end
  local raised = wanted + (shard - wanted) % shards
  redis.call('SET', counter_key, string.format('%.0f', raised))
  return raised, wanted > now
end

-- Invalidates every position in the feed that was issued so far: an old one is before its start, which
-- is part of its generation, and never means another change (rules P13, A5).
local function renew_feed(feed_key, feed_generation_key, counter_key, fresh, shard, shards)
  redis.call('INCRBY', counter_key, shards)
  local start = raise_counter(counter_key, shard, shards, 0)
  redis.call('UNLINK', feed_key)
  redis.call('SET', feed_generation_key, fresh .. '@' .. string.format('%.0f', start))
end
