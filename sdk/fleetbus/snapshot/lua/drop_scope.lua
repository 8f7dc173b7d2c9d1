-- Removes keys from one scope; a row that no other scope holds goes as 'unwatched' (rule P6).
--
-- KEYS  1 counter  2 feed  3 bodies  4 guards  5 tombstones  6 order  7 deleted  8 deletion-times
--       (and, named by terms: the label sets and owner sets of the removed rows)
-- ARGV  1 length of the feed  2 prefix of the owner sets  3 cluster  4 resource  5 scope
--       6 prefix of the label sets  7 number of shards, then the keys
-- Answer: how many live rows were removed.

local COUNTER, FEED, BODIES, GUARDS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local TOMBSTONES, ORDER, DELETED, TIMES = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local FEED_LENGTH, OWNER_PREFIX, SCOPE, ARGS_FIXED = ARGV[1], ARGV[2], ARGV[5], 7
local AT = { cluster = ARGV[3], resource = ARGV[4], label_prefix = ARGV[6] }

local function remove_row(key, entry)
  redis.call('HDEL', BODIES, key)
  redis.call('ZREM', ORDER, key)
  reindex_row(AT, OWNER_PREFIX, key, entry.terms, NO_TERMS)
  append_to_feed(FEED, FEED_LENGTH, next_counter(COUNTER, ARGV[7]), 'unwatched', AT, key)
end

local function leave(key, entry)
  entry.marks = without_mark(entry.marks, SCOPE)
  if entry.marks ~= '' then
    redis.call('HSET', GUARDS, key, write_guard(entry))
    return 0
  end
  redis.call('HDEL', GUARDS, key)
  if entry.state == 'L' then
    remove_row(key, entry)
    return 1
  end
  redis.call('HDEL', TOMBSTONES, key)
  redis.call('ZREM', DELETED, key)
  redis.call('ZREM', TIMES, key)
  return 0
end

local function run()
  local removed = 0
  for a = ARGS_FIXED + 1, #ARGV do
    local entry = read_guard(redis.call('HGET', GUARDS, ARGV[a]))
    if entry and mark_of(entry.marks, SCOPE) then
      removed = removed + leave(ARGV[a], entry)
    end
  end
  return removed
end

return run()
