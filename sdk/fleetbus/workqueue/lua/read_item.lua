-- Reads the status of one item.
--
-- Keys: dirty, processing, leases, delayed, quarantine, attempts, reclaims, breakers, outages
-- ARGV  2 item
-- Answer: {failures, dirty, processing, delayed, quarantine, breaker}. Each of the last five is an
-- empty list, or: {band, microseconds since}; {fence, microseconds since it was due, until the lease
-- ends}; {microseconds until due}; {microseconds until tried again, times quarantined}; {microseconds
-- until the next probe, failures in a row}. A time that is over is negative; that of a breaker is -1
-- when it is over, or when its probe is due and no item was ready.

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
