-- Finds the objects of a resource that changed after a version, a part at a time.
--
-- KEYS  1 guards  2 bodies
-- ARGV  1 the cursor of HSCAN  2 how many guards to look at, about  3 the version
-- Answer: {the next cursor, {key, ownership, bytes of its body, …}}. Ownership is empty; `mark`, if the
-- label of an owner mark is all; or `owner`.

local COUNTER = '^L\31%d+\31%d+\31(%d+)\31'
local MARK = '\30fleetbus.dev/owner-uid='
local function ownership(guard)
  local labels, owners = string.match(guard, '([^\31]*)\31([^\31]*)$')
  if owners == '' then return '' end
  local is_mark = string.find('\30' .. labels .. '\30', MARK .. owners .. '\30', 1, true)
  return is_mark and 'mark' or 'owner'
end

local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local found = {}
for i = 1, #page[2], 2 do
  local counter = string.match(page[2][i + 1], COUNTER)
  if counter and newer(counter, ARGV[3]) then
    found[#found + 1] = page[2][i]
    found[#found + 1] = ownership(page[2][i + 1])
    found[#found + 1] = redis.call('HSTRLEN', KEYS[2], page[2][i])
  end
end
return {page[1], found}
