-- The order guard of one key, and how versions compare; apply.lua decides by it whether an event is
-- applied. Precedes most scripts of this folder. Keys: only those passed to its functions.
--
-- A guard is one string; keys.guards() of proto lists its fields. Versions, incarnations and epoch
-- ids stay digit strings: numbers of Lua are doubles and lose digits above 2^53 (rule P2).

local SEP, ITEM, PART = '\31', '\30', '\29'
-- Labels and owners stay one string, `terms`, until an index changes: matching costs by the byte.
local GUARD = '^(%a)\31(%d+)\31(%d+)\31(%d+)\31([^\31]*)\31([^\31]*)\31([^\31]*)\31()'
local NO_TERMS = SEP

-- Compares by length, then bytes; the empty string is older than everything (rule P2).
local function newer(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end

local function rank_newer(version, id, than_version, than_id)
  if version ~= than_version then return newer(version, than_version) end
  return newer(id, than_id)
end

local function read_guard(text)
  if not text then return nil end
  local state, version, incarnation, counter, uid, degraded, marks, at = string.match(text, GUARD)
  return {
    state = state, version = version, incarnation = incarnation, counter = counter, uid = uid,
    degraded = degraded, marks = marks, terms = string.sub(text, at),
  }
end

local function write_guard(e)
  return table.concat({
    e.state, e.version, e.incarnation, e.counter, e.uid, e.degraded, e.marks, e.terms,
  }, SEP)
end

-- Iterates over a list that is joined by ITEM; over nothing for the empty string.
local function each(list)
  return string.gmatch(list, '[^\30]+')
end

-- The mark of a scope: list version and epoch id, both empty if the scope saw only watch events; nil
-- if the key is not in the scope.
local function mark_of(marks, scope)
  for mark in each(marks) do
    local name, version, id = string.match(mark, '^([^\29]*)\29([^\29]*)\29(.*)$')
    if name == scope then return version, id end
  end
  return nil
end

local function without_mark(marks, scope)
  local kept = {}
  for mark in each(marks) do
    if string.match(mark, '^[^\29]*') ~= scope then kept[#kept + 1] = mark end
  end
  return table.concat(kept, ITEM)
end

local function make_mark(scope, version, id)
  return scope .. PART .. version .. PART .. id
end

local function with_mark(marks, scope, version, id)
  local mark = make_mark(scope, version, id)
  local others = without_mark(marks, scope)
  return others == '' and mark or (others .. ITEM .. mark)
end

-- The server's clock, as a decimal string.
local function now_milliseconds()
  local time = redis.call('TIME')
  return string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
end

-- Why nothing may be written to this shard: it was emptied (rule P13), divided otherwise (P16), or
-- written by a newer release. A generation ends with the number of shards, and in a newer format with a
-- mark behind it.
local function why_not_ours(held, shards)
  if not held then return 'NOGENERATION the store was emptied, or was never set up' end
  local found = string.match(held, '/(%d+)$')
  if found ~= shards then return 'WRONGSHARDS ' .. held end
  return nil
end

-- Increments a shard's counter; returns a decimal string (tostring would round it). With steps of the
-- number of shards, no two shards issue the same version (rule A5).
local function next_counter(counter_key, shards)
  return string.format('%.0f', redis.call('INCRBY', counter_key, shards))
end

local function append_to_feed(feed, length, counter, what, at, key)
  redis.call('XADD', feed, 'MAXLEN', '~', length, counter .. '-0',
    'type', what, 'cluster', at.cluster, 'resource', at.resource, 'key', key)
end

-- Moves a member from the index sets of its old terms to those of its new ones.
local function reindex(prefix, old, new, member)
  if old == new then return end
  for term in each(old) do redis.call('SREM', prefix .. term, member) end
  for term in each(new) do redis.call('SADD', prefix .. term, member) end
end

local function reindex_row(at, owner_prefix, key, old, new)
  if old == new then return end
  local old_labels, old_owners = string.match(old, '^([^\31]*)\31(.*)$')
  local labels, owners = string.match(new, '^([^\31]*)\31(.*)$')
  reindex(at.label_prefix, old_labels, labels, key)
  reindex(owner_prefix, old_owners, owners, at.cluster .. '|' .. at.resource .. '|' .. key)
end
