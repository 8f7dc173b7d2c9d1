-- Where one item stands: ARGV[2] = item. Keys: dirty, processing, leases, delayed, quarantine,
-- attempts, reclaims, breakers, outages. Answers {failures, dirty, processing, delayed, quarantine,
-- breaker}, each of the last five an empty list or: {band, microseconds since}; {fence, microseconds
-- since it was due, microseconds of lease left}; {microseconds left}; {microseconds left, times};
-- {microseconds left, failures in a row}. What is left is negative once it is over; of a breaker
-- then -1, its time of a probe may be none.

local item = ARGV[2]

local function left_in(key, member)
  local at = call('ZSCORE', key, member)
  return at and math.floor(math.min(tonumber(at), 2 ^ 52) - NOW) or nil
end

local dirty, processing, delayed, quarantined, breaker = {}, {}, {}, {}, {}
local known = call('HGET', DIRTY, item)
if known then
  local band, since = parse_dirty(known)
  dirty = {band, math.floor(NOW - since)}
end
local record = call('HGET', PROCESSING, item)
if record then
  local fence, _, since = parse_processing(record)
  local lease = call('ZSCORE', LEASES, item)
  processing = {fence, math.floor(NOW - since), math.floor(tonumber(lease or NOW) - NOW)}
end
local due = left_in(DELAYED, item)
if due then delayed = {due} end
local kept = left_in(QUARANTINE, item)
if kept then
  local times = string.match(call('HGET', RECLAIMS, item) or '0:', '^%d+')
  quarantined = {kept, tonumber(times)}
end
local cluster = cluster_of(item)
local open = left_in(BREAKERS, cluster)
if open then breaker = {math.max(-1, open), read_outage(cluster) or 0} end
return {tonumber(call('HGET', ATTEMPTS, item) or 0), dirty, processing, delayed, quarantined, breaker}
