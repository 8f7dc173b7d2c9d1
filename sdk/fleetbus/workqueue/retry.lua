-- AddRateLimited (Q7): ARGV[2] = item, ARGV[3] = fence, then the back-off: ARGV[4] = first delay,
-- ARGV[5] = factor, ARGV[6] = longest delay, in microseconds. Keys: processing, attempts,
-- triggers, traces, delayed, wake. Answers the delay in microseconds, or -1 if the fence is refused.

local item = ARGV[2]
local record = held_under(item, ARGV[3])
if not record then return -1 end
local _, _, _, trigger, trace = parse_processing(record)
local failures = call('HINCRBY', ATTEMPTS, item, 1)
-- The exponent is bounded: a double's overflow is infinite, and the bound below still holds.
local pause = math.min(tonumber(ARGV[4]) * tonumber(ARGV[5]) ^ (failures - 1), tonumber(ARGV[6]))
remember_trigger(item, trigger)
recall_trace(item, trace)
delay(item, NOW + pause)
return math.floor(pause)
