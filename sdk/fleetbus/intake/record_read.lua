#!lua flags=allow-oom
-- Store which versions successful runs have read (rule P8).
--
-- KEYS: the index of the record; one hash per resource of a cluster.
-- ARGV: per hash its member of the index; then per object: the place of its hash in KEYS, its key,
-- what was read ('live', 'absent', or 'unread': the run was woken by this version and read nothing),
-- incarnation number and resourceVersion, '1' if the run received `left`.
-- Values are those of record_save.lua.

-- P2: by length, then bytes; a number of Lua is a double and wrong above 2^53.
local function newer(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end

-- Whether all that is stored is a deletion, no later than this version.
local function is_gone_by(seen, incarnation, version)
  local of, was = string.match(seen, '^(%d+)/(%d+)\n', 9) -- behind the revision
  if not of or newer(of, incarnation) then return false end
  return of ~= incarnation or not newer(was, version)
end

-- Whether runs now receive `left`: what a run has read that received the opposite proves nothing.
local function reports_left(seen)
  return string.byte(seen, 1) % 2 == 1
end

local first = #KEYS
for at = first, #ARGV, 6 do
  local hash = tonumber(ARGV[at])
  local key, what = ARGV[at + 1], ARGV[at + 2]
  local incarnation, version, received = ARGV[at + 3], ARGV[at + 4], ARGV[at + 5] == '1'
  local held = redis.call('HGET', KEYS[hash], key)
  local read, seen = '', ''
  if held then read, seen = string.match(held, '^([^\n]*)\n(.*)$') end
  local is_over = what == 'absent' and seen == ''
  if is_over or (what ~= 'live' and is_gone_by(seen, incarnation, version)) then
    if held then redis.call('HDEL', KEYS[hash], key) end
  elseif what ~= 'unread' and (seen == '' or received == reports_left(seen)) then
    local of, was = string.match(read, '^(%d+)/(%d+)$')
    if not of or newer(incarnation, of) or (incarnation == of and newer(version, was)) then
      redis.call('HSET', KEYS[hash], key, incarnation .. '/' .. version .. '\n' .. seen)
      redis.call('SADD', KEYS[1], ARGV[hash - 1])
    end
  end
end
return 0
