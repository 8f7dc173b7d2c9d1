-- Give back, undone (Q4): ARGV[2..] = (item, fence) for each. Keys: as done.lua, triggers and traces.
-- Answers the indices (from 0) of what is refused.

local refused = {}
for i = 2, #ARGV, 2 do
  local item, fence = ARGV[i], ARGV[i + 1]
  local record = held_under(item, fence)
  if record then
    local _, band, since, trigger, trace = parse_processing(record)
    end_lease(item, fence)
    return_to_queue(item, band, since, trigger, trace)
  else
    refused[#refused + 1] = i / 2 - 1
  end
end
notify_takers()
return refused
