-- Finds the epochs of one cluster that wait for objects (rule P5) or for their sweep (rule P6).
--
-- KEYS  the epochs of each scope
-- Answer: for each with such an epoch its position among the keys, and its fields and values.

local function is_unfinished(fields)
  local completed, swept
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    if string.sub(name, 1, 4) == 'end:' then return true end
    if name == 'completed' then completed = value elseif name == 'swept' then swept = value end
  end
  return completed ~= swept
end

local unfinished = {}
for position, key in ipairs(KEYS) do
  local fields = redis.call('HGETALL', key)
  if is_unfinished(fields) then unfinished[#unfinished + 1] = { position, fields } end
end
return unfinished
