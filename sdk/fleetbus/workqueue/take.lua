-- Get (Q1, Q4, Q9 to Q11): ARGV[2] = request token, ARGV[3] = limit. Keys: all but suspects,
-- reclaims. Answers {microseconds until something is due or -1, fence, then for each item: item,
-- dirty since, failures, band, trigger, trace, note}.

local TOKEN, LIMIT = ARGV[2], tonumber(ARGV[3])
local PROMOTED = 500  -- due items moved per call: bounds the time this script holds the server
local SHARE = {[1] = 0.25, [2] = 0.125}  -- runs a lower band is owed for each run above it (Q10)

-- Q11: the same token gets the same items, with a whole lease again.
local function take_again()
  local answer, cursor, fence = {}, '0', ''
  repeat
    local page = call('HSCAN', PROCESSING, cursor, 'COUNT', 500)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local item = page[2][i]
      local held, band, since, trigger, trace = parse_processing(page[2][i + 1])
      if token_of(held) == TOKEN then
        fence = held
        call('ZADD', LEASES, whole(NOW + LEASE), item)
        call('HDEL', SUSPECTS, item)
        local failures = tonumber(call('HGET', ATTEMPTS, item) or 0)
        local note = call('HGET', NOTES, item) or ''
        for _, field in ipairs({item, whole(since), failures, band, trigger, trace, note}) do
          answer[#answer + 1] = field
        end
      end
    end
  until cursor == '0'
  return fence, answer
end

local function promote()
  for _, item in ipairs(call('ZRANGE', DELAYED, '-inf', whole(NOW), 'BYSCORE', 'LIMIT', 0, PROMOTED)) do
    call('ZREM', DELAYED, item)
    mark_dirty(item, RETRY, NOW, '')
  end
  for _, item in ipairs(call('ZRANGE', QUARANTINE, '-inf', whole(NOW), 'BYSCORE', 'LIMIT', 0, PROMOTED)) do
    call('ZREM', QUARANTINE, item)
    ready_if_dirty(item)
  end
end

local function until_due()
  local first = math.huge
  for _, key in ipairs({DELAYED, QUARANTINE}) do
    local head = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if head[2] then first = math.min(first, tonumber(head[2])) end
  end
  if first == math.huge then return -1 end
  return math.max(0, first - NOW)
end

-- Q10: the highest band that has something, unless a lower one has been passed over for long
-- enough. A band without items is owed nothing.
local function choose_band(filled, credit)
  local first = nil
  for band = 0, 2 do
    if filled[band] then
      first = first or band
      if band > first then credit[band] = credit[band] + SHARE[band] end
    end
  end
  if not first then return nil end
  for band = 2, first + 1, -1 do
    if filled[band] and credit[band] >= 1 then
      credit[band] = credit[band] - 1
      return band
    end
  end
  return first
end

local function pop_from(band, left)
  local cluster = call('ZRANGE', TURNS[band], 0, 0)[1]
  local key = ready_key(band, cluster)
  left[key] = left[key] or call('ZCARD', key)
  local item = call('ZPOPMIN', key)[1]
  left[key] = left[key] - 1
  if left[key] > 0 then
    call('ZINCRBY', TURNS[band], 1, cluster)
  else
    call('ZREM', TURNS[band], cluster)
  end
  return item
end

local function pop_ready()
  local items, filled, credit, left = {}, {}, {}, {}
  for band = 0, 2 do
    filled[band] = call('EXISTS', TURNS[band]) == 1
    credit[band] = tonumber(call('HGET', CREDITS, band) or 0)
  end
  while #items < LIMIT do
    local band = choose_band(filled, credit)
    if not band then break end
    items[#items + 1] = pop_from(band, left)
    filled[band] = call('EXISTS', TURNS[band]) == 1
  end
  for band = 1, 2 do
    if filled[band] and credit[band] > 0 then
      call('HSET', CREDITS, band, credit[band])
    else
      call('HDEL', CREDITS, band)
    end
  end
  return items
end

local function start(items)
  -- A store without leases begins a new generation, so an emptied one never repeats a fence (Q4).
  call('HSETNX', PULSE, 'generation', TOKEN)
  call('HSET', PULSE, 'at', whole(NOW))
  local fence = whole(NOW) .. '.' .. TOKEN .. '.' .. call('HGET', PULSE, 'generation')
  local dirty = call('HMGET', DIRTY, unpack(items))
  local failures = call('HMGET', ATTEMPTS, unpack(items))
  local triggers = call('HMGET', TRIGGERS, unpack(items))
  local traces, notes = call('HMGET', TRACES, unpack(items)), call('HMGET', NOTES, unpack(items))
  local answer, records, leases = {}, {}, {}
  for i, item in ipairs(items) do
    local band, since = parse_dirty(dirty[i])
    local trigger, trace = triggers[i] or '', traces[i] or ''
    local failed, note = tonumber(failures[i] or 0), notes[i] or ''
    for _, field in ipairs({item, whole(since), failed, band, trigger, trace, note}) do
      answer[#answer + 1] = field
    end
    records[2 * i - 1] = item
    records[2 * i] = fence .. ' ' .. band .. ' ' .. whole(since) .. ' ' .. trace .. ' ' .. trigger
    leases[2 * i - 1] = whole(NOW + LEASE)
    leases[2 * i] = item
  end
  call('HDEL', DIRTY, unpack(items))
  call('HDEL', TRIGGERS, unpack(items))
  call('HDEL', TRACES, unpack(items))
  call('HSET', PROCESSING, unpack(records))
  call('ZADD', LEASES, unpack(leases))
  call('HSET', TAKES, TOKEN, #items)
  return fence, answer
end

local fence, answer
if call('HEXISTS', TAKES, TOKEN) == 1 then
  fence, answer = take_again()
else
  promote()
  local items = pop_ready()
  fence, answer = '', {}
  if #items > 0 then fence, answer = start(items) end
  announce()
end
table.insert(answer, 1, fence)
table.insert(answer, 1, #answer == 1 and until_due() or -1)
return answer
