-- Taking (rules Q1, Q4, Q9 to Q11): leases ready items in the order of bands, flows and age. A part of
-- the scripts that take: `take`, and those that make items ready for a taker of the same process.
--
-- Keys: all but reclaims and noted; of attempts and notes it only reads
-- `take_items(at)` reads from ARGV[at] to the end: request token, limit, most items of a cluster that
-- is not named, most probes of open breakers, '1' if the token may have been sent before, then for each
-- named cluster: cluster, most items of it.
-- It returns {microseconds until something is due, or -1; 1 if something was ready for which there was
-- no capacity; fence; then for each item: item, dirty since (by the server's clock), failures, band,
-- trigger, trace, note, 1 for a probe, charged cluster if the item names another one}.

local TOKEN, LIMIT, DEFAULT, PROBES, IS_REPEATED
local has_notes = false  -- this script has left some
local put_off = 0  -- items that this script has delayed behind a breaker
local PROMOTED = 500  -- most due items moved per call: a script blocks the server while it runs
local SHARE = {[1] = 0.25, [2] = 0.125}  -- credit of a lower band for each run of a higher one (Q10)

-- The same token gets the same items, with a whole lease again (rule Q11).
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
        local _, _, probe = read_outage(cluster_of(item))
        local is_probe = probe == held and 1 or 0
        local cause = cause_of(item) or ''
        local fields = {item, whole(since - AHEAD), failures, band, trigger, trace, note, is_probe, cause}
        for _, field in ipairs(fields) do answer[#answer + 1] = field end
      end
    end
  until cursor == '0'
  return fence, answer
end

local function promote()
  if FOUND == 0 then return end
  for _, item in ipairs(call('ZRANGE', DELAYED, '-inf', whole(NOW), 'BYSCORE', 'LIMIT', 0, PROMOTED)) do
    call('ZREM', DELAYED, item)
    mark_dirty(item, RETRY, NOW, '')
  end
  if not has_rare(QUARANTINE) then return end
  for _, item in ipairs(call('ZRANGE', QUARANTINE, '-inf', whole(NOW), 'BYSCORE', 'LIMIT', 0, PROMOTED)) do
    call('ZREM', QUARANTINE, item)
    ready_if_dirty(item)
  end
end

local function until_due()
  if FOUND == 0 and put_off == 0 then return -1 end
  local first = math.huge
  for _, key in ipairs({DELAYED, QUARANTINE, BREAKERS}) do
    -- Later than now: what is due already does not fit this taker.
    local head = call('ZRANGE', key, '(' .. whole(NOW), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    if head[2] then first = math.min(first, tonumber(head[2])) end
  end
  if first == math.huge then return -1 end
  return math.max(0, first - NOW)
end

-- The highest band that has items, unless a lower one has been passed over for long enough (rule
-- Q10). A band without items gets no credit.
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

-- How many more items of each cluster the taker has capacity for; `full` bounds the flows without.
local capacities, full = {}, 0

local function capacity_of(flow)
  return capacities[cluster_of_flow(flow)] or DEFAULT
end

local function use_capacity(flow)
  local cluster = cluster_of_flow(flow)
  capacities[cluster] = capacity_of(cluster) - 1
  if capacities[cluster] == 0 then full = full + 2 end  -- its two flows
end

local function read_limits(at)
  TOKEN, LIMIT = ARGV[at], tonumber(ARGV[at + 1])
  DEFAULT, PROBES = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  IS_REPEATED = ARGV[at + 4] == '1'
  for i = at + 5, #ARGV, 2 do
    capacities[ARGV[i]] = tonumber(ARGV[i + 1])
    if capacities[ARGV[i]] <= 0 then full = full + 2 end
  end
end

-- The next flow of a band for which there is capacity, and how many were passed over.
local function next_up(band)
  local passed = 0
  for _, cluster in ipairs(call('ZRANGE', TURNS[band], 0, full)) do
    if capacity_of(cluster) > 0 then return cluster, passed end
    passed = passed + 1
  end
  return nil, passed
end

local function pop_from(band, cluster, left)
  local key = ready_key(band, cluster)
  left[key] = left[key] or call('ZCARD', key)
  local item = call('ZPOPMIN', key)[1]
  left[key] = left[key] - 1
  if left[key] > 0 then
    call('ZINCRBY', TURNS[band], step_of(cluster), cluster)
  else
    call('ZREM', TURNS[band], cluster)
  end
  return item
end

-- An item in the flow of another cluster, while the breaker of the one that it names is open: it is
-- the probe if that is due, or is delayed.
local PROBE_LATER = 1000000

local function is_probe_due_for(target, at, probes)
  return probes < PROBES and (at == PARKED or at <= NOW) and capacity_of(target) > 0
end

local function delay_behind_breaker(item, at)
  local due = (at > NOW and at < math.huge) and at or NOW + PROBE_LATER
  call('HDEL', DIRTY, item)
  delay(item, due)
  put_off = put_off + 1
end

-- Takes one item, of the highest band that has one, for each open breaker whose pause is over (rule
-- Q9). Returns whether there was no capacity for one.
local function pop_probes(items, probing)
  if not has_outages then return false end
  local is_at_capacity = false
  for _, cluster in ipairs(call('ZRANGE', BREAKERS, 0, whole(NOW), 'BYSCORE')) do
    if capacity_of(cluster) <= 0 or #items >= math.min(LIMIT, PROBES) then
      is_at_capacity = true
    else
      local item = nil
      for band = 0, 2 do item = item or call('ZPOPMIN', ready_key(band, cluster))[1] end
      if item then
        items[#items + 1] = item
        probing[item] = true
        use_capacity(cluster)
      end
      call('ZADD', BREAKERS, item and '+inf' or PARKED, cluster)
    end
  end
  return is_at_capacity
end

-- Turns in which a flow was passed over are lost, not saved up: if it were held back for long, its
-- backlog of turns would later hold back every other flow.
local function forfeit_turns(band)
  local cluster, passed = next_up(band)
  if not cluster or passed == 0 then return end
  local score = call('ZSCORE', TURNS[band], cluster)
  for _, other in ipairs(call('ZRANGE', TURNS[band], 0, passed - 1)) do
    call('ZADD', TURNS[band], 'GT', score, other)
  end
end

-- Returns the items, which of them are probes, and whether some were left for lack of capacity.
local function pop_ready()
  local items, probing, filled, left = {}, {}, {}, {}
  if not has_outages and is_idle() then return items, probing, false end
  local is_at_capacity = pop_probes(items, probing)
  local probes = #items
  local stored = call('HMGET', CREDITS, 1, 2)
  local credit = {[0] = 0, [1] = tonumber(stored[1] or 0), [2] = tonumber(stored[2] or 0)}
  for band = 0, 2 do filled[band] = next_up(band) end
  while #items < LIMIT and put_off < PROMOTED do
    local band = choose_band(filled, credit)
    if not band then break end
    local before, flow = full, filled[band]
    local item = pop_from(band, flow, left)
    local target = cluster_of(item)
    local at = flow ~= target and open_until(target) or nil
    if at and not is_probe_due_for(target, at, probes) then
      delay_behind_breaker(item, at)
    else
      if at then
        probes, probing[item] = probes + 1, true
        call('ZADD', BREAKERS, '+inf', target)
      end
      items[#items + 1] = item
      use_capacity(flow)
    end
    for other = 0, 2 do
      if other == band or full > before then filled[other] = next_up(other) end
    end
  end
  for band = 0, 2 do
    local is_waiting = filled[band] or (full > 0 and call('EXISTS', TURNS[band]) == 1)
    is_at_capacity = is_at_capacity or (is_waiting and not filled[band])
    if full > 0 then forfeit_turns(band) end
    if band > 0 then
      if is_waiting and credit[band] > 0 then
        if credit[band] ~= tonumber(stored[band]) then call('HSET', CREDITS, band, credit[band]) end
      elseif stored[band] then
        call('HDEL', CREDITS, band)
      end
    end
  end
  return items, probing, is_at_capacity
end

-- A store in which nothing waits for a time starts a new generation, so an emptied one never repeats a
-- fence (Q4).
local function begin_generation()
  GENERATION, is_time_kept = TOKEN, true
  call('HSET', CLOCK, 'generation', TOKEN, 'at', whole(NOW))
end

-- Leases items. `dirty` has what the queue keeps of each: band, dirty since, trigger, trace.
local function lease(items, dirty, probing)
  if not GENERATION then begin_generation() end
  local fence, ends = whole(NOW) .. '.' .. TOKEN .. '.' .. GENERATION, whole(NOW + LEASE)
  local failures = FOUND > 0 and call('HMGET', ATTEMPTS, unpack(items)) or {}
  local notes = (FOUND > 0 or has_notes) and call('HMGET', NOTES, unpack(items)) or {}
  local answer, records, leases = {}, {}, {}
  for i, item in ipairs(items) do
    local band, since, trigger, trace = unpack(dirty[i])
    local failed, note = tonumber(failures[i] or 0), notes[i] or ''
    local is_probe, at, time = probing[item] and 1 or 0, 9 * (i - 1), whole(since)
    answer[at + 1], answer[at + 2] = item, whole(since - AHEAD)
    answer[at + 3], answer[at + 4] = failed, band
    answer[at + 5], answer[at + 6], answer[at + 7], answer[at + 8] = trigger, trace, note, is_probe
    answer[at + 9] = cause_of(item) or ''
    records[2 * i - 1] = item
    records[2 * i] = fence .. ' ' .. band .. ' ' .. time .. ' ' .. trace .. ' ' .. trigger
    leases[2 * i - 1] = ends
    leases[2 * i] = item
  end
  call('HSET', PROCESSING, unpack(records))
  call('ZADD', LEASES, unpack(leases))
  has_leased = true
  return fence, answer
end

local function start(items, probing)
  local held = call('HMGET', DIRTY, unpack(items))
  local triggers, traces = call('HMGET', TRIGGERS, unpack(items)), call('HMGET', TRACES, unpack(items))
  local dirty, triggered, traced = {}, {}, {}
  for i, item in ipairs(items) do
    local band, since = parse_dirty(held[i])
    dirty[i] = {band, since, triggers[i] or '', traces[i] or ''}
    if triggers[i] then triggered[#triggered + 1] = item end
    if traces[i] then traced[#traced + 1] = item end
  end
  local fence, answer = lease(items, dirty, probing)
  call('HDEL', DIRTY, unpack(items))
  if #triggered > 0 then call('HDEL', TRIGGERS, unpack(triggered)) end
  if #traced > 0 then call('HDEL', TRACES, unpack(traced)) end
  for item in pairs(probing) do
    local failures, opened = read_outage(cluster_of(item))
    write_outage(cluster_of(item), failures, opened, fence)
  end
  return fence, answer
end

local function answer_with(due, is_at_capacity, fence, answer)
  table.insert(answer, 1, fence)
  table.insert(answer, 1, is_at_capacity and 1 or 0)
  table.insert(answer, 1, due)
  return answer
end

local function take_items(at)
  local fence, answer, is_at_capacity, taken = '', {}, false, 0
  read_limits(at)
  -- Sent once, but it comes after its own repetition: whoever sent it reads only that answer.
  local is_overtaken = not IS_REPEATED and has_rare(TAKES) and call('HEXISTS', TAKES, TOKEN) == 1
  if IS_REPEATED or is_overtaken then fence, answer = take_again() end
  if fence == '' and not is_overtaken then
    local items, probing
    promote()
    items, probing, is_at_capacity = pop_ready()
    taken = #items
    if taken > 0 then
      fence, answer = start(items, probing)
      if IS_REPEATED then call('HSET', TAKES, TOKEN, whole(NOW)) end
    elseif is_at_capacity and call('EXISTS', LEASES) == 1 then
      call('HSET', LIVENESS, 'at_capacity', 1)
    end
  end
  local due = -1
  if taken < LIMIT then
    -- Behind so many that were delayed there may be one that is ready.
    due = put_off >= PROMOTED and 0 or until_due()
  end
  return answer_with(due, is_at_capacity, fence, answer)
end

-- For scripts that end with the arguments of a waiting taker, if the process has one.
local function take_for_waiting(at)
  if at > #ARGV or (is_idle() and not is_probe_due) then return false end
  return take_items(at)
end
