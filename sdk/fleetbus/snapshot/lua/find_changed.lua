-- Finds the objects of a resource that changed after a version, a part at a time.
--
-- KEYS  1 guards  2 bodies
-- ARGV  1 the cursor of HSCAN  2 how many guards to look at, about  3 the version
-- Answer: {the next cursor, {key, uids of its owners, bytes of its body, …}}.

local COUNTER = '^L\31%d+\31%d+\31(%d+)\31'
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local found = {}
for i = 1, #page[2], 2 do
  local counter = string.match(page[2][i + 1], COUNTER)
  if counter and newer(counter, ARGV[3]) then
    found[#found + 1] = page[2][i]
    found[#found + 1] = string.match(page[2][i + 1], '[^\31]*$')
    found[#found + 1] = redis.call('HSTRLEN', KEYS[2], page[2][i])
  end
end
return {page[1], found}
