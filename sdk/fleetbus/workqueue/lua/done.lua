-- Done (rules Q1, Q4): ends leases. Then takes for a waiting taker of the same process.
--
-- Keys: all; from 25 on those of ending.lua
-- ARGV  2 as `end_runs`; then, if the process has a waiting taker, as `take_items`
-- Answer: {the indices, from 0, of the items that are refused; of `take_items`, or nothing if it was
-- not called}.

local refused, rest = end_runs(2, {})
write_records()
local taken = take_for_waiting(rest)
finish()
return {refused, taken}
