-- Finds the objects of one name in several resources of one shard, in any namespace or in one.
--
-- KEYS  per resource: 1 order  2 guards
-- ARGV  1 the name  2 '1' if only in this namespace  3 the namespace
-- Answer: {how many of the resources were searched; per object: number of the resource, key, guard}.
--         It ends early, after a resource, when it has looked at enough namespaces.

local NAME, IS_ONE, NAMESPACE = ARGV[1], ARGV[2] == '1', ARGV[3]
local MOST = 2000
local looks, found = 0, {}

local function take(index, key)
  if redis.call('ZSCORE', KEYS[2 * index - 1], key) then
    found[#found + 1] = index
    found[#found + 1] = key
    found[#found + 1] = redis.call('HGET', KEYS[2 * index], key)
  end
end

-- The keys of a namespace are neighbours in the order, so one step leads to the next namespace.
local function search(index)
  local low = '-'
  while true do
    local first = redis.call('ZRANGEBYLEX', KEYS[2 * index - 1], low, '+', 'LIMIT', 0, 1)[1]
    if not first then return end
    local namespace = string.match(first, '^[^/]*')
    take(index, namespace .. '/' .. NAME)
    low = '[' .. namespace .. '0' -- the byte after '/'
    looks = looks + 1
  end
end

local done = 0
for index = 1, #KEYS / 2 do
  if IS_ONE then take(index, NAMESPACE .. '/' .. NAME) else search(index) end
  done = index
  if looks >= MOST then break end
end
return { done, found }
