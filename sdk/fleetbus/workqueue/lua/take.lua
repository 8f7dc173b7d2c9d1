-- Take (rule Q1): leases ready items. Preceded by taking.lua.
--
-- ARGV  from 2 as `take_items`
-- Answer: as of `take_items`.

local answer = take_items(2)
finish()
return answer
