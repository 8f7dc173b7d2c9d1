-- The identity of the Redis server. Precedes the scripts that keep offset checkpoints (rule P11).
-- Keys: none.

-- Identifies the server and its history of writes. It changes with a restart, a promotion, or a
-- return to an earlier state; not with FLUSHALL.
local function redis_identity()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  local history = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)')
  return (run or '') .. ' ' .. (history or '')
end

