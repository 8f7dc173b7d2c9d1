-- `fleetbus queue retry` (rule Q7): makes delayed items due now, one or a page of all that wait
-- after a failure.
--
-- Keys: delayed, attempts, notify
-- ARGV  2 item, or '' for a page of all  3 where the page begins, '0' at first
-- Answer: {where the next page begins, '0' after the last; how many became due}.

local following, items, made_due = '0', {ARGV[2]}, 0
if ARGV[2] == '' then
  local page = call('ZSCAN', DELAYED, ARGV[3], 'COUNT', 500)
  following, items = page[1], {}
  for i = 1, #page[2], 2 do
    if call('HEXISTS', ATTEMPTS, page[2][i]) == 1 then items[#items + 1] = page[2][i] end
  end
end
for _, item in ipairs(items) do
  made_due = made_due + call('ZADD', DELAYED, 'XX', 'LT', 'CH', whole(NOW), item)
end
if made_due > 0 then call('PUBLISH', NOTIFY, '') end
return {following, made_due}
