-- Releases an item from quarantine (rule Q7).
--
-- Keys: quarantine, reclaims, dirty, ready, turns, breakers, outages, causes, liveness, notify
-- ARGV  2 item
-- Answer: 1, or 0 if the item is not in quarantine.

local item = ARGV[2]
local released = call('ZREM', QUARANTINE, item)
if released == 1 then
  call('HDEL', RECLAIMS, item)
  ready_if_dirty(item)
  finish()
end
return released
