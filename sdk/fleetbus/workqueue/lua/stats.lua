-- Counts the items of the queue.
--
-- Keys: turns, ready, delayed, processing, quarantine, attempts, breakers, outages
-- ARGV  none
-- Answer: {delayed, processing, failing, depths, quarantined, breakers}. The last three are lists of
-- {band, flow, depth, microseconds since its oldest item}; {cluster, quarantined items}; {cluster,
-- microseconds until the next probe, failures in a row, times opened, 1 while a probe runs}.

local depths, kept, breakers = {}, {}, {}

local function count_ready(band, cluster)
  local key = ready_key(band, cluster)
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if first then
    depths[#depths + 1] = {band, cluster, call('ZCARD', key), math.max(0, NOW - tonumber(first))}
  end
end

for band = 0, 2 do
  for _, cluster in ipairs(call('ZRANGE', TURNS[band], 0, -1)) do count_ready(band, cluster) end
end
local open = call('ZRANGE', BREAKERS, 0, -1, 'WITHSCORES')
for i = 1, #open, 2 do
  local failures, opened, probe = read_outage(open[i])
  local pause = probe == '-' and math.max(0, tonumber(open[i + 1]) - NOW) or 0
  breakers[#breakers + 1] = {open[i], pause, failures, opened, probe == '-' and 0 or 1}
  for band = 0, 2 do count_ready(band, open[i]) end
end
local counts = {}
for _, item in ipairs(call('ZRANGE', QUARANTINE, 0, -1)) do
  local cluster = cluster_of(item)
  counts[cluster] = (counts[cluster] or 0) + 1
end
for cluster, count in pairs(counts) do kept[#kept + 1] = {cluster, count} end
local failing = call('HLEN', ATTEMPTS)
return {call('ZCARD', DELAYED), call('HLEN', PROCESSING), failing, depths, kept, breakers}
