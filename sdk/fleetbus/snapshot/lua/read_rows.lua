-- Reads guards and bodies of one moment, up to a size.
--
-- KEYS  1 guards  2 bodies
-- ARGV  1 most bytes  2… the keys of the objects, at most 500
-- Answer: guard and body of one key after another, false where there is none. It ends early when
--         the bodies have reached the size; the first key is always answered.

local MOST = tonumber(ARGV[1])
local members = {}
for i = 2, #ARGV do members[#members + 1] = ARGV[i] end

local function run()
  local guards, rows, size = redis.call('HMGET', KEYS[1], unpack(members)), {}, 0
  for i, member in ipairs(members) do
    local body = redis.call('HGET', KEYS[2], member)
    rows[#rows + 1] = guards[i]
    rows[#rows + 1] = body
    if body then size = size + #body end
    if size >= MOST then break end
  end
  return rows
end

return run()
