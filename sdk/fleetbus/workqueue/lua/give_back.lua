-- Give back (rule Q4): ends leases of runs that did not finish; the items are ready again.
--
-- Keys: processing, leases, takes, suspects, liveness, dirty, quarantine, triggers, traces, causes,
--       ready, turns, credits, breakers, outages, clock, notify
-- ARGV  for each item: item, fence
-- Answer: the indices, from 0, of those that are refused.

local refused = {}
for i = 2, #ARGV, 2 do
  local item, fence = ARGV[i], ARGV[i + 1]
  local record = held_under(item, fence)
  if record then
    local _, band, since, trigger, trace = parse_processing(record)
    end_leases({item}, {fence})
    return_to_queue(item, band, since, trigger, trace)
  else
    refused[#refused + 1] = i / 2 - 1
  end
end
finish()
return refused
