-- Picks keys for a page of a list, in the order of clusters and keys, without reading bodies.
--
-- KEYS  for each cluster: order bodies guards
--       (and, named by terms: its label sets)
-- ARGV  1 keys wanted  2 look-ups in orders and sets, about, at most  3 '1' to count the range, else ''
--       4 '1' to answer guards, else ''  5 lower bound in the first cluster  6 in the others
--       7 upper bound  8 only objects of this name, or ''  9 number of label terms, then the terms,
--       then the prefix of each cluster's label sets if there are terms
-- Answer: {the cluster to go on with, or 0 at the end; its lower bound; the count, over all clusters;
--          parts of {cluster; 1 if its keys are in order, else 0; keys; how many bytes their bodies
--          have; their guards, if they are wanted}}. Clusters are numbered from 1 as in KEYS.
--
-- More keys may come than are wanted. Those of a small label set come all together, and in no order:
-- also those below the lower bound.

local KEYS_EACH, SMALL, CHUNK = 3, 1000, 500
local WANTED, MOST, COUNTS, GUARDS = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1', ARGV[4] == '1'
local FIRST_LOW, LOW, HIGH, NAME, TERMS = ARGV[5], ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9])
local CLUSTERS = #KEYS / KEYS_EACH

local parts, taken, looked = {}, 0, 0

local function order_of(at) return KEYS[(at - 1) * KEYS_EACH + 1] end
local function bodies_of(at) return KEYS[(at - 1) * KEYS_EACH + 2] end
local function guards_of(at) return KEYS[(at - 1) * KEYS_EACH + 3] end

local function sets_of(at)
  local sets, prefix = {}, ARGV[9 + TERMS + at]
  for i = 1, TERMS do sets[i] = prefix .. ARGV[9 + i] end
  return sets
end

local function measure(at, keys)
  local sizes, bodies = {}, bodies_of(at)
  for i, key in ipairs(keys) do sizes[i] = redis.call('HSTRLEN', bodies, key) end
  return sizes
end

local function add(at, keys, is_ordered)
  if #keys == 0 then return end
  taken = taken + #keys
  local guards = GUARDS and redis.call('HMGET', guards_of(at), unpack(keys)) or {}
  parts[#parts + 1] = {at, is_ordered, keys, measure(at, keys), guards}
end

local function read_range(at, low, most)
  local keys = redis.call('ZRANGEBYLEX', order_of(at), low, HIGH, 'LIMIT', 0, most)
  looked = looked + #keys
  return keys, #keys == most and '(' .. keys[most] or nil
end

-- Each of these answers where to go on in the cluster, or nil at its end.

local function pick_range(at, low)
  local keys, rest = read_range(at, low, math.min(WANTED - taken, MOST - looked))
  add(at, keys, 1)
  return rest
end

local function has_all(sets, key)
  for _, set in ipairs(sets) do
    if redis.call('SISMEMBER', set, key) == 0 then return false end
  end
  return true
end

local function with_all(sets, keys)
  for _, set in ipairs(sets) do
    if #keys == 0 then return keys end
    local kept = {}
    for i, is_member in ipairs(redis.call('SMISMEMBER', set, unpack(keys))) do
      if is_member == 1 then kept[#kept + 1] = keys[i] end
    end
    keys = kept
  end
  return keys
end

-- A small set is read as a whole, which costs nothing by the size of the cluster. A large one is only
-- asked about the keys in their order: to sort it would block the server for long.
local function pick_labelled(at, low)
  local sets, smallest = sets_of(at), nil
  for _, set in ipairs(sets) do
    local size = redis.call('SCARD', set)
    smallest = math.min(smallest or size, size)
  end
  if smallest <= SMALL then
    looked = looked + smallest
    if smallest > 0 then add(at, redis.call('SINTER', unpack(sets)), 0) end
    return nil
  end
  local rest = low
  repeat
    local keys
    keys, rest = read_range(at, rest, math.min(CHUNK, MOST - looked))
    looked = looked + #keys * (TERMS - 1)
    add(at, with_all(sets, keys), 1)
  until not rest or taken >= WANTED or looked >= MOST
  return rest
end

-- Goes from namespace to namespace, so it costs nothing by the objects in them. The byte after the
-- slash of "<namespace>/<name>" is "0".
local function pick_named(at, low)
  local sets, order, found, rest = TERMS > 0 and sets_of(at) or {}, order_of(at), {}, low
  repeat
    local first = redis.call('ZRANGEBYLEX', order, rest, HIGH, 'LIMIT', 0, 1)[1]
    looked = looked + 1
    local namespace = first and string.match(first, '^[^/]*')
    if namespace then
      local key = namespace .. '/' .. NAME
      local is_above = redis.call('ZLEXCOUNT', order, rest, '[' .. key) > 0
      if is_above and redis.call('ZSCORE', order, key) and has_all(sets, key) then
        found[#found + 1] = key
      end
      rest = '[' .. namespace .. '0'
    else
      rest = nil
    end
  until not rest or taken + #found >= WANTED or looked >= MOST
  add(at, found, 1)
  return rest
end

local function count_in(at, low)
  if low == '-' and HIGH == '+' then return redis.call('ZCARD', order_of(at)) end
  return redis.call('ZLEXCOUNT', order_of(at), low, HIGH)
end

local function count_all()
  local count = count_in(1, FIRST_LOW)
  for at = 2, CLUSTERS do count = count + count_in(at, LOW) end
  return count
end

local function run()
  local pick = NAME ~= '' and pick_named or TERMS > 0 and pick_labelled or pick_range
  local count = COUNTS and count_all() or 0
  for at = 1, CLUSTERS do
    local low = at == 1 and FIRST_LOW or LOW
    if taken >= WANTED or looked >= MOST then return {at, low, count, parts} end
    local rest = pick(at, low)
    if rest then return {at, rest, count, parts} end
    looked = looked + 1
  end
  return {0, '', count, parts}
end

return run()
