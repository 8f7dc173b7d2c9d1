-- Keeps the suspects of an audit until they can be evaluated (rule P15).
--
-- KEYS  1 generation  2 clusters  3 epochs of the scope  4 the audit  5 audits of the cluster
--       6 audits that are due
-- ARGV  1 what to do  2 cluster  3 resource  4 scope  5 incarnation  6 list version  7 id, and
--   page   8 number, or '' when more suspects of it follow  9 whether it is the last ('1' or '')
--          10 how many suspects are kept, then for each: key, `<version> <uid>` or ''
--   pass   (the low-water mark has passed the list version)
--   end    8 '1' if it was evaluated and found clean, else ''  9 how many suspects are kept
-- Answer: 0 the audit is ignored, 1 done, 2 it is complete without suspects.

local GENERATION, CLUSTERS, EPOCHS, AUDIT = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local AUDITS, DUE = KEYS[5], KEYS[6]
local OP, CLUSTER, RESOURCE, SCOPE = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local INCARNATION, VERSION, ID = ARGV[5], ARGV[6], ARGV[7]
local NAME = RESOURCE .. '|' .. SCOPE
local IGNORED, DONE, CLEAN, ARGS_FIXED = 0, 1, 2, 10
local KEPT_SECONDS = 86400 -- as long as its pages are on the stream

if redis.call('EXISTS', GENERATION) == 0 then -- P13
  return redis.error_reply('NOGENERATION the store was emptied, or was never set up')
end

-- Only a complete list of the same history, no newer than the audit, can be compared with it.
local function is_comparable()
  if redis.call('HEXISTS', CLUSTERS, CLUSTER) == 0 then return false end
  local held = redis.call('HMGET', EPOCHS, 'incarnation', 'completed', 'floor')
  return held[1] == INCARNATION and held[2] and not newer(held[3] or '', VERSION)
end

-- Everything that existed at this version is stored, in this version or a newer one, and nothing else
-- from before is (rule P15). So no event up to it brings news, as after a complete list (rule P4).
local function raise_floor()
  redis.call('HSET', EPOCHS, 'floor', VERSION)
end

local function forget()
  redis.call('DEL', AUDIT)
  redis.call('SREM', AUDITS, NAME)
  redis.call('ZREM', DUE, CLUSTER .. '|' .. NAME)
end

local function begin()
  forget()
  redis.call('HSET', AUDIT, 'incarnation', INCARNATION, 'version', VERSION, 'id', ID,
    'pages', '0', 'suspects', '0')
  redis.call('EXPIRE', AUDIT, KEPT_SECONDS)
  redis.call('SADD', AUDITS, NAME)
end

local function is_ours(held)
  return held[1] == INCARNATION and held[2] == VERSION and held[3] == ID
end

local function is_complete(held)
  return held[5] and tonumber(held[4]) == tonumber(held[5]) + 1
end

local function read()
  return redis.call('HMGET', AUDIT, 'incarnation', 'version', 'id', 'pages', 'last', 'passed',
    'suspects')
end

-- A newer audit takes the place of an older one, unless that is about to be evaluated.
local function is_admitted(held)
  if not held[1] then return true end
  if held[6] and is_complete(held) then return false end
  if held[1] ~= INCARNATION then return newer(INCARNATION, held[1]) end
  return rank_newer(VERSION, ID, held[2], held[3])
end

local function keep_suspects()
  local room, added = tonumber(ARGV[10]) - tonumber(redis.call('HGET', AUDIT, 'suspects')), 0
  for a = ARGS_FIXED + 1, #ARGV, 2 do
    if added >= room then break end
    added = added + redis.call('HSET', AUDIT, '?' .. ARGV[a], ARGV[a + 1])
  end
  if added > 0 then redis.call('HINCRBY', AUDIT, 'suspects', added) end
end

local function take_page()
  if not is_comparable() then return IGNORED end
  local held = read()
  if not is_ours(held) then
    if not is_admitted(held) then return IGNORED end
    begin()
  end
  keep_suspects()
  if ARGV[8] == '' then return DONE end
  if redis.call('HSETNX', AUDIT, 'page:' .. ARGV[8], '') == 1 then
    redis.call('HINCRBY', AUDIT, 'pages', 1)
  end
  if ARGV[9] == '1' then redis.call('HSET', AUDIT, 'last', ARGV[8]) end
  held = read()
  if is_complete(held) and held[7] == '0' then
    forget()
    raise_floor()
    return CLEAN
  end
  return DONE
end

local function pass()
  if not is_ours(read()) then return IGNORED end
  local now = now_milliseconds()
  redis.call('HSETNX', AUDIT, 'passed', now)
  redis.call('ZADD', DUE, 'NX', now, CLUSTER .. '|' .. NAME)
  return DONE
end

local function finish()
  local held = read()
  if not is_ours(held) then return IGNORED end
  forget()
  -- With more suspects than are kept, the others were never evaluated.
  local is_whole = tonumber(held[7]) < (tonumber(ARGV[9]) or 0)
  if ARGV[8] == '1' and is_whole and is_comparable() then raise_floor() end
  return DONE
end

return ({ page = take_page, pass = pass, ['end'] = finish })[OP]()
