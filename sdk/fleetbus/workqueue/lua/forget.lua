-- Forget, and AddAfter if a delay is given: ARGV[2] = item, ARGV[3] = fence, ARGV[4] =
-- microseconds or -1. Keys: processing, attempts, delayed, notify. Answers 1, or -1 if the fence is
-- refused.

local item, pause = ARGV[2], tonumber(ARGV[4])
if not held_under(item, ARGV[3]) then return -1 end
call('HDEL', ATTEMPTS, item)
if pause >= 0 then delay(item, NOW + pause) end
return 1
