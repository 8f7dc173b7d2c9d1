#!lua flags=allow-oom
-- Remember which versions successful reconciles have read (rule P8).
--
-- KEYS: the index of the record; one hash per resource of a cluster.
-- ARGV: per hash its member of the index; then per object: the place of its hash in KEYS, its key,
-- what was read ('live', 'absent', or 'unread': the run was woken by this version and did not look),
-- incarnation number and resourceVersion.
-- Values are those of record_save.lua.

-- P2: by length, then bytes; a number of Lua is a double and wrong above 2^53.
local function newer(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end

-- Whether all that was seen is a deletion, not later than this version.
local function is_gone_by(seen, incarnation, version)
  local of, was = string.match(seen, '^(%d+)/(%d+)\n', 9) -- behind the revision
  if not of or newer(of, incarnation) then return false end
  return of ~= incarnation or not newer(was, version)
end

local first = #KEYS
for at = first, #ARGV, 5 do
  local hash = tonumber(ARGV[at])
  local key, what = ARGV[at + 1], ARGV[at + 2]
  local incarnation, version = ARGV[at + 3], ARGV[at + 4]
  local held = redis.call('HGET', KEYS[hash], key)
  local read, seen = '', ''
  if held then read, seen = string.match(held, '^([^\n]*)\n(.*)$') end
  local is_over = what == 'absent' and seen == ''
  if is_over or (what ~= 'live' and is_gone_by(seen, incarnation, version)) then
    if held then redis.call('HDEL', KEYS[hash], key) end
  elseif what ~= 'unread' then
    local of, was = string.match(read, '^(%d+)/(%d+)$')
    if not of or newer(incarnation, of) or (incarnation == of and newer(version, was)) then
      redis.call('HSET', KEYS[hash], key, incarnation .. '/' .. version .. '\n' .. seen)
      redis.call('SADD', KEYS[1], ARGV[hash - 1])
    end
  end
end
return 0
