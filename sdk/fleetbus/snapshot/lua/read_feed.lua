-- Reads changes from the feed of a shard (rule A5).
--
-- KEYS  1 feed generation  2 feed  3 counter  4 store
-- ARGV  1 the version after which to read  2 the last version to read, or '' for all  3 most changes
-- Answer: {the feed generation, or '' if the server has changed and nobody has renewed the feed yet;
--          the last version issued; the first version in the feed if older ones were cut off, else '';
--          the entries}.

local GENERATION, FEED, COUNTER, STORE = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local function first_after_cut()
  if redis.call('EXISTS', FEED) == 0 then return '' end
  local info, found = redis.call('XINFO', 'STREAM', FEED), {}
  for i = 1, #info, 2 do found[info[i]] = info[i + 1] end
  if found['entries-added'] == found['length'] then return '' end
  return found['first-entry'] and string.match(found['first-entry'][1], '^%d+') or ''
end

local run = redis.call('HGET', STORE, 'run')
local is_renewed = not run or run == redis_identity()
local generation = is_renewed and redis.call('GET', GENERATION) or ''
local upto = ARGV[2] == '' and '+' or ARGV[2]
local entries = redis.call('XRANGE', FEED, '(' .. ARGV[1], upto, 'COUNT', ARGV[3])
return {generation, redis.call('GET', COUNTER) or '0', first_after_cut(), entries}
