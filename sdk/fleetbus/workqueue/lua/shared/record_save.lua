-- Stores or forgets what a controller has seen of objects (rule P8). A part of the scripts that do.
--
-- `hashes`: the index of the record; then one hash per resource of a cluster.
-- `rows`: per hash its member of the index; then per object: the place of its hash in `hashes`, its
-- key, the revision that the caller has read ('' if there was none), '1' if the stored read proves
-- nothing any more, its new value ('' to forget it, '=' to keep it).
--
-- A value is '<incarnation>/<resourceVersion read>\n<revision, 8 bytes><what was seen>'; the first
-- part may be empty, and so may all after the line break. The revision begins with an odd byte if
-- runs receive `left`. What was seen begins with
-- '<incarnation>/<resourceVersion>\n' of the deletion if that is all that was seen.

-- The objects (from 1) that another process has written meanwhile: as a list, and as a set.
local function find_conflicts(hashes, rows)
  local list, set = {}, {}
  for at = #hashes, #rows, 5 do
    local _, seen = split_record(read_record(hashes[tonumber(rows[at])], rows[at + 1]))
    if string.sub(seen, 1, 8) ~= rows[at + 2] then
      local number = (at - #hashes) / 5 + 1
      list[#list + 1], set[number] = number, true
    end
  end
  return list, set
end

-- Writes all but those in conflict.
local function save_records(hashes, rows, conflicts)
  for at = #hashes, #rows, 5 do
    local hash, key, value = hashes[tonumber(rows[at])], rows[at + 1], rows[at + 4]
    if value == '=' or conflicts[(at - #hashes) / 5 + 1] then -- it stays as it is
    elseif value == '' then
      fresh[hash][key] = false
    else
      local read = rows[at + 3] == '1' and '' or split_record(read_record(hash, key))
      fresh[hash][key] = read .. '\n' .. value
    end
  end
end
