-- Extend (rules Q4, Q5): each lease lasts a whole lease from now on.
--
-- Keys: processing, leases, suspects
-- ARGV  for each item: item, fence
-- Answer: the indices, from 0, of those that are refused.

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
