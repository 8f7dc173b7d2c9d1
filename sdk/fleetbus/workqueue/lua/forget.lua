-- Forget: clears the failures of an item; with a delay also AddAfter.
--
-- Keys: processing, attempts, delayed, clock, notify
-- ARGV  2 item  3 fence  4 delay in microseconds, or -1
-- Answer: 1, or -1 if the fence is refused.

local item, pause = ARGV[2], tonumber(ARGV[4])
if not held_under(item, ARGV[3]) then return -1 end
call('HDEL', ATTEMPTS, item)
if pause >= 0 then delay(item, NOW + pause) end
return 1
