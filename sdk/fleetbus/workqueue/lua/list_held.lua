-- Lists what must not be ready: items that are processing, and items in quarantine.
--
-- Keys: leases, processing, quarantine, reclaims
-- ARGV  2 most items of each
-- Answer: {processing, quarantined}: {item, fence, microseconds until the lease ends} and {item,
-- microseconds until it is tried again, times quarantined}.

local last = tonumber(ARGV[2]) - 1
local processing, quarantined = {}, {}

local leases = call('ZRANGE', LEASES, 0, last, 'WITHSCORES')
for i = 1, #leases, 2 do
  local fence = parse_processing(call('HGET', PROCESSING, leases[i]))
  processing[#processing + 1] = {leases[i], fence, tonumber(leases[i + 1]) - NOW}
end
local kept = call('ZRANGE', QUARANTINE, 0, last, 'WITHSCORES')
for i = 1, #kept, 2 do
  local times = string.match(call('HGET', RECLAIMS, kept[i]) or '0:', '^%d+')
  quarantined[#quarantined + 1] = {kept[i], tonumber(kept[i + 1]) - NOW, tonumber(times)}
end
return {processing, quarantined}
