-- Drops the tombstones that are no longer needed (rule P3).
--
-- KEYS  1 guards  2 tombstones  3 deleted  4 deletion-times  5 scopes
--       (and the epochs of every scope of the resource)
-- ARGV  1 resource  2 prefix of the epochs' keys, then the keys to check
-- Answer: how many were dropped.

local GUARDS, TOMBSTONES, DELETED, TIMES, SCOPES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local RESOURCE, EPOCHS_PREFIX, ARGS_FIXED = ARGV[1], ARGV[2], 2

local function read_scopes()
  local found = {}
  local start = RESOURCE .. '|'
  for _, member in ipairs(redis.call('SMEMBERS', SCOPES)) do
    if string.sub(member, 1, #start) == start then
      local scope = string.sub(member, #start + 1)
      local held = redis.call('HMGET', EPOCHS_PREFIX .. scope, 'incarnation', 'floor', 'completed')
      local version, id = string.match(held[3] or ' ', '^(%d*) (%d*)$')
      found[#found + 1] = { name = scope, incarnation = held[1] or '', floor = held[2] or '',
        version = version, id = id }
    end
  end
  return found
end

-- Every scope that has seen it must have passed it: a late event of any of them could bring the
-- object back. A mark above the completed rank still counts in a running epoch.
local function has_passed(scope, entry)
  local version, id = mark_of(entry.marks, scope.name)
  if not version then return true end
  if newer(entry.incarnation, scope.incarnation) then return false end
  if newer(scope.incarnation, entry.incarnation) then return scope.version ~= '' end
  if newer(entry.version, scope.floor) then return false end
  return not rank_newer(version, id, scope.version, scope.id)
end

local function is_spent(scopes, entry)
  if not entry or entry.state == 'L' then return false end
  for _, scope in ipairs(scopes) do
    if not has_passed(scope, entry) then return false end
  end
  return true
end

local function run()
  local scopes, dropped = read_scopes(), 0
  for a = ARGS_FIXED + 1, #ARGV do
    local key = ARGV[a]
    if is_spent(scopes, read_guard(redis.call('HGET', GUARDS, key))) then
      redis.call('HDEL', GUARDS, key)
      redis.call('HDEL', TOMBSTONES, key)
      redis.call('ZREM', DELETED, key)
      redis.call('ZREM', TIMES, key)
      dropped = dropped + 1
    end
  end
  return dropped
end

return run()
