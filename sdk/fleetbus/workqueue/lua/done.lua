-- Done (rules Q1, Q4): ends leases; an item that is dirty again becomes ready.
--
-- Keys: processing, leases, takes, suspects, reclaims, liveness, dirty, delayed, ready, turns, notes,
--       noted, attempts, breakers, outages, causes, clock, notify
-- ARGV  for each item: item, fence, note; an empty note removes the last one (rule Q12)
-- Answer: the indices, from 0, of those that are refused.

local has_notes = call('EXISTS', NOTES) == 1

local function leave_note(item, note)
  if note ~= '' then
    call('HSET', NOTES, item, note)
    call('ZADD', NOTED, whole(NOW), item)
  elseif has_notes then
    call('HDEL', NOTES, item)
    call('ZREM', NOTED, item)
  end
end

-- A run that ends without counted failures was a success: its cluster answers (Q9).
local function end_outage(item)
  local cluster = cluster_of(item)
  if not read_outage(cluster) or call('HEXISTS', ATTEMPTS, item) == 1 then return end
  call('HDEL', OUTAGES, cluster)
  close_breaker(cluster)
end

local refused = {}
for i = 2, #ARGV, 3 do
  local item, fence, note = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if held_under(item, fence) then
    if has_outages then end_outage(item) end
    end_lease(item, fence)
    call('HDEL', RECLAIMS, item)  -- its owner has survived the run (Q7)
    leave_note(item, note)
    ready_if_dirty(item)
    local is_waiting = call('HEXISTS', DIRTY, item) == 1 or call('ZSCORE', DELAYED, item)
    if has_causes and not is_waiting then call('HDEL', CAUSES, item) end
  else
    refused[#refused + 1] = (i - 2) / 3
  end
end
notify_takers()
return refused
