-- Store or forget what a controller has seen of objects (rule P8).
--
-- KEYS: the index of the record; one hash per resource of a cluster.
-- ARGV: per hash its member of the index; then per object: the place of its hash in KEYS, its key,
-- the revision that the caller has read ('' if there was none), '1' if the stored read proves
-- nothing any more, its new value ('' to forget it).
-- Returns which of the objects (from 1) another process has written meanwhile; they stay unchanged.
--
-- A value is '<incarnation>/<resourceVersion read>\n<revision, 8 bytes><what was seen>'; the first
-- part may be empty, and so may all after the line break. The revision begins with an odd byte if
-- runs receive `left`. What was seen begins with
-- '<incarnation>/<resourceVersion>\n' of the deletion if that is all that was seen.

local first = #KEYS
local conflicts = {}
for at = first, #ARGV, 5 do
  local hash = tonumber(ARGV[at])
  local key, revision, is_void, value = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local held = redis.call('HGET', KEYS[hash], key)
  local read, seen = '', ''
  if held then read, seen = string.match(held, '^([^\n]*)\n(.*)$') end
  if string.sub(seen, 1, 8) ~= revision then
    conflicts[#conflicts + 1] = (at - first) / 5 + 1
  elseif value == '' then
    redis.call('HDEL', KEYS[hash], key)
  else
    if is_void == '1' then read = '' end
    redis.call('HSET', KEYS[hash], key, read .. '\n' .. value)
    redis.call('SADD', KEYS[1], ARGV[hash - 1])
  end
end
return conflicts
