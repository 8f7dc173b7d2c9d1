-- Reap (rules Q6, Q7): marks expired leases as suspect, and recovers those that still are a while
-- later. Also drops old notes.
--
-- Keys: all but attempts
-- ARGV  2 grace between mark and recovery  3 window of reclaims  4 reclaims that quarantine; the
--       quarantine's back-off: 5 first  6 factor  7 longest; 8 age at which notes are dropped; all
--       times in microseconds
-- Answer: {hold in microseconds, number marked, number recovered, quarantined items…}.

local GRACE, WINDOW, LIMIT = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local FIRST, FACTOR, LONGEST = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local BATCH, SAMPLE = 500, 50

-- "<quarantines>:<time>,<time>…": the reclaims inside the window, newest last.
local function count_reclaim(item)
  local value = call('HGET', RECLAIMS, item) or '0:'
  local quarantines, rest = string.match(value, '^(%d+):(.*)$')
  local times = {}
  for time in string.gmatch(rest, '%d+') do
    if tonumber(time) > NOW - WINDOW then times[#times + 1] = time end
  end
  times[#times + 1] = whole(NOW)
  return tonumber(quarantines), times
end

-- An item is never dropped (rule Q7). After a quarantine the next lost owner puts it back, for
-- longer, until one owner survives.
local function quarantine_if_deadly(item)
  local quarantines, times = count_reclaim(item)
  local is_deadly = quarantines > 0 or #times >= LIMIT
  if is_deadly then
    local pause = math.min(FIRST * FACTOR ^ quarantines, LONGEST)
    await_time()
    call('ZADD', QUARANTINE, whole(NOW + pause), item)
    quarantines = quarantines + 1
  end
  call('HSET', RECLAIMS, item, quarantines .. ':' .. table.concat(times, ','))
  return is_deadly
end

local function recover(item)
  local record = call('HGET', PROCESSING, item)
  if not record then  -- see restore_lost
    call('ZREM', LEASES, item)
    call('HDEL', SUSPECTS, item)
    return false
  end
  local fence, band, since, trigger, trace = parse_processing(record)
  end_leases({item}, {fence})
  local is_deadly = quarantine_if_deadly(item)
  return_to_queue(item, band, since, trigger, trace)
  return is_deadly
end

-- After a restart or a failover of the store nothing is reaped for one lease, as after a jump.
local function read_hold()
  local run = string.match(call('INFO', 'server'), 'run_id:(%w+)')
  local known, hold = unpack(call('HMGET', LIVENESS, 'run', 'hold'))
  if known and known ~= run then
    hold = NOW + LEASE
    call('HSET', LIVENESS, 'hold', whole(hold))
  end
  if known ~= run then call('HSET', LIVENESS, 'run', run) end
  return tonumber(hold or 0) - NOW
end

-- Most notes are replaced by the next run; those of items that never run again would stay.
local function drop_old_notes()
  local age = tonumber(ARGV[8])
  for _, item in ipairs(call('ZRANGE', NOTED, '-inf', whole(NOW - age), 'BYSCORE', 'LIMIT', 0, BATCH)) do
    call('HDEL', NOTES, item)
    call('ZREM', NOTED, item)
  end
end

-- A take that comes later than this after its repetition has lost its connection long before.
local function forget_repetitions()
  local held = has_rare(TAKES) and call('HGETALL', TAKES) or {}
  for i = 1, #held, 2 do
    if tonumber(held[i + 1]) < NOW - 4 * LEASE then call('HDEL', TAKES, held[i]) end
  end
end

-- A script that meets a key of the wrong type, which another program wrote, ends halfway: it may leave
-- a dirty item that is not ready, or one that is processing without a lease. Nobody would ever take
-- it, so some items are looked at each time (rule Q7).
local function restore_lost()
  for _, item in ipairs(call('HRANDFIELD', DIRTY, SAMPLE)) do
    local band, since = parse_dirty(call('HGET', DIRTY, item))
    local flow = flow_of(item)
    if is_held(item) then
      -- it becomes ready afterwards
    elseif not call('ZSCORE', ready_key(band, flow), item) then
      make_ready(item, band, since)
    elseif not open_until(flow) then
      join_turns(band, flow)
    end
  end
  for _, item in ipairs(call('HRANDFIELD', PROCESSING, SAMPLE)) do
    if not call('ZSCORE', LEASES, item) then
      await_time()
      call('ZADD', LEASES, whole(NOW + LEASE), item)
    end
  end
end

drop_old_notes()
forget_repetitions()
restore_lost()
local marked, recovered, quarantined = 0, 0, {}
local hold = 0
if call('EXISTS', LEASES) == 1 then
  hold = read_hold()
  if hold <= 0 then
    for _, item in ipairs(call('ZRANGE', LEASES, '-inf', whole(NOW), 'BYSCORE', 'LIMIT', 0, BATCH)) do
      local mark = tonumber(call('HGET', SUSPECTS, item) or math.huge)
      if mark > NOW then
        call('HSET', SUSPECTS, item, whole(NOW))
        marked = marked + 1
      elseif NOW - mark >= GRACE then
        recovered = recovered + 1
        if recover(item) then quarantined[#quarantined + 1] = item end
      end
    end
  end
end
finish()
return {math.max(0, hold), marked, recovered, unpack(quarantined)}
