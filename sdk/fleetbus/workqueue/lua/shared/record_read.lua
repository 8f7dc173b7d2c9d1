-- Stores which versions successful runs have read (rule P8). A part of the scripts that do.
--
-- `hashes`: the index of the record; then one hash per resource of a cluster.
-- `rows`: per hash its member of the index; then per object: the place of its hash in `hashes`, its
-- key, what was read ('live', 'absent', or 'unread': the run was woken by this version and read
-- nothing), incarnation number and resourceVersion, '1' if the run received `left`.
-- Values are those of record_save.lua.

-- What was read, and the revision with what was seen; both empty if there is no record.
local function split_record(held)
  if not held then return '', '' end
  return string.match(held, '^([^\n]*)\n(.*)$')
end

-- Whether all that is stored is a deletion, no later than this version.
local function is_gone_by(seen, version)
  local gone = string.match(seen, '^(%d+/%d+)\n', 9) -- behind the revision
  return gone and not is_older(version, gone)
end

-- Whether runs now receive `left`: what a run has read that received the opposite proves nothing.
local function reports_left(seen)
  return string.byte(seen, 1) % 2 == 1
end

-- Records are read and written together: by hash, the keys that are wanted, what is stored under them,
-- and what is new, false for what is forgotten.
local wanted, stored, fresh, indexes = {}, {}, {}, {}

local function want_records(hashes, rows, width)
  for at = #hashes, #rows, width do
    local number = tonumber(rows[at])
    local hash = hashes[number]
    wanted[hash] = wanted[hash] or {}
    table.insert(wanted[hash], rows[at + 1])
    indexes[hash] = {hashes[1], rows[number - 1]}
  end
end

local function read_record(hash, key)
  if not stored[hash] then
    stored[hash], fresh[hash] = {}, {}
    local values = redis.call('HMGET', hash, unpack(wanted[hash]))
    for i, name in ipairs(wanted[hash]) do stored[hash][name] = values[i] end
  end
  if fresh[hash][key] ~= nil then return fresh[hash][key] end
  return stored[hash][key]
end

local function write_records()
  for hash, changes in pairs(fresh) do
    local values, gone, is_new = {}, {}, false
    for key, value in pairs(changes) do
      if value then
        values[#values + 1], values[#values + 2] = key, value
        is_new = is_new or not stored[hash][key]
      elseif stored[hash][key] then
        gone[#gone + 1] = key
      end
    end
    if #gone > 0 then redis.call('HDEL', hash, unpack(gone)) end
    if #values > 0 then redis.call('HSET', hash, unpack(values)) end
    if is_new then redis.call('SADD', unpack(indexes[hash])) end
  end
end

local function note_reads(hashes, rows)
  for at = #hashes, #rows, 6 do
    local hash, key, what = hashes[tonumber(rows[at])], rows[at + 1], rows[at + 2]
    local version, received = rows[at + 3] .. '/' .. rows[at + 4], rows[at + 5] == '1'
    local read, seen = split_record(read_record(hash, key))
    local is_over = what == 'absent' and seen == ''
    if is_over or (what ~= 'live' and is_gone_by(seen, version)) then
      fresh[hash][key] = false
    elseif what ~= 'unread' and (seen == '' or received == reports_left(seen)) then
      local latest = newest(read, version)
      if latest ~= read then fresh[hash][key] = latest .. '\n' .. seen end
    end
  end
end
