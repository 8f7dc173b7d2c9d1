-- Goes before the scripts that keep checkpoints (rule P11).

-- Which server this is, and which history of writes it has: another one after a restart, a
-- promotion, or a return to an earlier state; not after FLUSHALL.
local function identity()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  local history = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)')
  return (run or '') .. ' ' .. (history or '')
end

