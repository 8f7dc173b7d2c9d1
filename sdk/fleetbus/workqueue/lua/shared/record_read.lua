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
local function is_gone_by(seen, incarnation, version)
  local of, was = string.match(seen, '^(%d+)/(%d+)\n', 9) -- behind the revision
  if not of or is_digits_above(of, incarnation) then return false end
  return of ~= incarnation or not is_digits_above(was, version)
end

-- Whether runs now receive `left`: what a run has read that received the opposite proves nothing.
local function reports_left(seen)
  return string.byte(seen, 1) % 2 == 1
end

local function note_reads(hashes, rows)
  for at = #hashes, #rows, 6 do
    local hash, key, what = tonumber(rows[at]), rows[at + 1], rows[at + 2]
    local incarnation, version, received = rows[at + 3], rows[at + 4], rows[at + 5] == '1'
    local held = redis.call('HGET', hashes[hash], key)
    local read, seen = split_record(held)
    local is_over = what == 'absent' and seen == ''
    if is_over or (what ~= 'live' and is_gone_by(seen, incarnation, version)) then
      if held then redis.call('HDEL', hashes[hash], key) end
    elseif what ~= 'unread' and (seen == '' or received == reports_left(seen)) then
      local of, was = string.match(read, '^(%d+)/(%d+)$')
      local is_newer = not of or is_digits_above(incarnation, of)
      if is_newer or (incarnation == of and is_digits_above(version, was)) then
        redis.call('HSET', hashes[hash], key, incarnation .. '/' .. version .. '\n' .. seen)
        redis.call('SADD', hashes[1], rows[hash - 1])
      end
    end
  end
end
