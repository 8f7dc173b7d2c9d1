-- Done (Q1, Q4): ARGV[2..] = (item, fence, note) for each; an empty note removes the last one
-- (Q12). Keys: processing, leases, takes, suspects, reclaims, pulse, dirty, ready, turns, notes, wake. Answers the indices (from 0) of what is refused.

local refused = {}
local has_notes = call('EXISTS', NOTES) == 1
for i = 2, #ARGV, 3 do
  local item, fence, note = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if held_under(item, fence) then
    end_lease(item, fence)
    call('HDEL', RECLAIMS, item)  -- an owner that lived to say so: the key kills nobody (Q7)
    if note ~= '' then
      call('HSET', NOTES, item, note)
    elseif has_notes then
      call('HDEL', NOTES, item)
    end
    ready_if_dirty(item)
  else
    refused[#refused + 1] = (i - 2) / 3
  end
end
announce()
return refused
