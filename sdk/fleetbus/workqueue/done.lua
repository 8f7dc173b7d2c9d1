-- Done (Q1, Q4): ARGV[2..] = (item, fence) for each. Keys: processing, leases, takes, suspects,
-- reclaims, pulse, dirty, ready, turns, wake. Answers the indices (from 0) of what is refused.

local refused = {}
for i = 2, #ARGV, 2 do
  local item, fence = ARGV[i], ARGV[i + 1]
  if held_under(item, fence) then
    end_lease(item, fence)
    call('HDEL', RECLAIMS, item)  -- an owner that lived to say so: the key kills nobody (Q7)
    ready_if_dirty(item)
  else
    refused[#refused + 1] = i / 2 - 1
  end
end
announce()
return refused
