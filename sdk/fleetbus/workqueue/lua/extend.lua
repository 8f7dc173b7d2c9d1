-- Extend (Q4, Q5): ARGV[2..] = (item, fence) for each. Keys: processing, leases, suspects.
-- Answers the indices (from 0) of what is refused.

local refused = {}
for i = 2, #ARGV, 2 do
  local item = ARGV[i]
  if held_under(item, ARGV[i + 1]) then
    call('ZADD', LEASES, whole(NOW + LEASE), item)
    call('HDEL', SUSPECTS, item)
  else
    refused[#refused + 1] = i / 2 - 1
  end
end
return refused
