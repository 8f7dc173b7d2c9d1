-- Depth of the queue: no arguments. Keys: turns, ready, delayed, processing, quarantine. Answers
-- {delayed, processing, quarantined, microseconds since the oldest ready item or -1, then band,
-- cluster, depth for each}.

local oldest, depths = math.huge, {}
for band = 0, 2 do
  for _, cluster in ipairs(call('ZRANGE', TURNS[band], 0, -1)) do
    local key = ready_key(band, cluster)
    oldest = math.min(oldest, tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]))
    depths[#depths + 1] = {band, cluster, call('ZCARD', key)}
  end
end
local age = oldest == math.huge and -1 or math.max(0, NOW - oldest)
local delayed, processing = call('ZCARD', DELAYED), call('HLEN', PROCESSING)
return {delayed, processing, call('ZCARD', QUARANTINE), age, depths}
