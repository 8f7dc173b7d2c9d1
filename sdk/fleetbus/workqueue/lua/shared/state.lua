-- The state of one controller's queue and its transitions (rules Q1 to Q10). Every script of this
-- folder is this text followed by its own; fleetbus.workqueue describes the parts. Beside the keys
-- that it names, every script reads and writes clock and liveness.
--
-- KEYS, the same for every script, in the order of scripts.PARTS:
--   ready  (prefix: ready:<band>:<cluster>)  turns:0  turns:1  turns:2  credits
--   dirty  delayed  triggers  processing  leases  takes  attempts
--   suspects  reclaims  quarantine  liveness  notify (a channel, not a key)  traces  notes  noted
--   breakers  outages  clock  causes
-- ARGV  1 the lease in microseconds, then " <cluster>=<step>" for each cluster with a weight; the
--       rest belongs to the script.
--
-- Times are microseconds of this server's clock (Q3), plus the amount by which it went back (Q8);
-- below 2^53 until the year 2255.

local call = redis.call
local READY, TURNS, CREDITS = KEYS[1], {[0] = KEYS[2], [1] = KEYS[3], [2] = KEYS[4]}, KEYS[5]
local DIRTY, DELAYED, TRIGGERS = KEYS[6], KEYS[7], KEYS[8]
local PROCESSING, LEASES, TAKES, ATTEMPTS = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local SUSPECTS, RECLAIMS, QUARANTINE, LIVENESS, NOTIFY = KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local TRACES, NOTES, NOTED = KEYS[18], KEYS[19], KEYS[20]
local BREAKERS, OUTAGES, CLOCK, CAUSES = KEYS[21], KEYS[22], KEYS[23], KEYS[24]
local LEASE = tonumber(string.match(ARGV[1], '^%d+'))
local RETRY = 1  -- the band of what comes back: delayed, retried, reclaimed

local function whole(number)
  return string.format('%.0f', number)
end

-- --- the time (Q3, Q8) -------------------------------------------------------------------------

-- The time of a queue never goes back: when the server's clock does, the queue stays ahead of it by
-- that amount. So everything that waits is shifted by the jump at once, however many items there are.
-- To notice a jump, every script stores its time here while anything waits for a time: a lease does.
-- A gap of more than half a lease means that owners could not extend theirs: nothing is reaped for one
-- lease (Q6).
local is_time_kept = false

local function read_time()
  local clock = call('TIME')
  local held = call('HMGET', CLOCK, 'at', 'ahead', 'generation')
  local ahead = tonumber(held[2] or 0)
  local now = clock[1] * 1000000 + clock[2] + ahead
  if not held[1] then return now, ahead end
  is_time_kept = true
  local last = tonumber(held[1])
  if now < last then
    now, ahead = last, last - now + ahead
    call('HSET', CLOCK, 'ahead', whole(ahead))
  elseif now - last > LEASE / 2 and call('EXISTS', LEASES) == 1 then
    call('HSET', LIVENESS, 'hold', whole(now + LEASE))
  end
  call('HSET', CLOCK, 'at', whole(now))
  return now, ahead, held[3]
end

local NOW, AHEAD, GENERATION = read_time()

local function await_time()  -- something is going to wait for a time
  if is_time_kept then return end
  call('HSET', CLOCK, 'at', whole(NOW))
  is_time_kept = true
end

-- --- what the queue has, when the script begins -------------------------------------------------

-- Most scripts find a queue in which nothing is left but what is processing: one question answers for
-- all that is absent then, and a second one for what is rare.
local FOUND = call('EXISTS', TURNS[0], TURNS[1], TURNS[2], CREDITS, DIRTY, DELAYED, TRIGGERS, TRACES,
  ATTEMPTS, NOTES, SUSPECTS, RECLAIMS, QUARANTINE, TAKES, OUTAGES, CAUSES)
local RARE = FOUND > 0
  and call('EXISTS', SUSPECTS, RECLAIMS, QUARANTINE, TAKES, OUTAGES, CAUSES) or 0

local function has_rare(key)
  return RARE > 0 and call('EXISTS', key) == 1
end

-- --- notifying takers that wait ---------------------------------------------------------------

local WAS_IDLE = FOUND == 0 or call('EXISTS', TURNS[0], TURNS[1], TURNS[2]) == 0
local has_joined, is_probe_due = false, false

local function is_idle()
  if WAS_IDLE and not has_joined then return true end
  return call('EXISTS', TURNS[0], TURNS[1], TURNS[2]) == 0
end

-- Takers wait after they found nothing ready, so the edge from idle to not idle notifies them. After
-- `at_capacity` was set, so does every flow that joins: a taker may have capacity for that one.
local function notify_takers()
  local must_notify = is_probe_due or (has_joined and WAS_IDLE and not is_idle())
  if has_joined and not must_notify then must_notify = call('HGET', LIVENESS, 'at_capacity') ~= false end
  if not must_notify then return end
  call('HDEL', LIVENESS, 'at_capacity')
  call('PUBLISH', NOTIFY, '')
end

-- The last step of a script that changes what is ready, or ends leases. Without leases and anything else
-- that waits, nothing is left to compare times with.
local has_ended, has_leased = false, false

local function finish()
  if has_ended and not has_leased and call('EXISTS', LEASES) == 0 then
    if call('EXISTS', DELAYED, QUARANTINE, BREAKERS) == 0 then
      call('DEL', LIVENESS, TAKES, CLOCK)
    else
      call('DEL', LIVENESS, TAKES)
    end
  end
  notify_takers()
end

-- --- triggers (P10) ----------------------------------------------------------------------------

local function is_digits_above(a, b)  -- P2: by length, then bytes; never tonumber
  if #a ~= #b then return #a > #b end
  return a > b
end

-- Whether a trigger "<incarnation number>/<resourceVersion>" is older; of others nobody can tell.
local function is_older(trigger, than)
  local number, rv = string.match(trigger, '^(%d+)/(%d+)$')
  local than_number, than_rv = string.match(than, '^(%d+)/(%d+)$')
  if not number or not than_number then return false end
  if number ~= than_number then return is_digits_above(than_number, number) end
  return is_digits_above(than_rv, rv)
end

-- The newer of two triggers; of those that do not compare, the later one.
local function newest(old, new)
  if not old or old == '' then return new end
  if not new or new == '' then return old end
  return is_older(new, old) and old or new
end

local function remember_trigger(item, trigger)
  if trigger == '' then return end
  local old = call('HGET', TRIGGERS, item)
  local kept = newest(old, trigger)
  if kept ~= old then call('HSET', TRIGGERS, item, kept) end
end

-- The trace of the last add that had one counts; that of a run that comes back, only without one.
local function remember_trace(item, trace)
  if trace ~= '' then call('HSET', TRACES, item, trace) end
end

local function recall_trace(item, trace)
  if trace ~= '' then call('HSETNX', TRACES, item, trace) end
end

-- --- ready -------------------------------------------------------------------------------------

-- A flow is what takes turns (Q9): "<cluster>" has the items that name the cluster and were caused by
-- its own changes, "<cluster>>" those that its changes caused and that name other clusters. Only the
-- first kind takes no turns while the breaker of its cluster is open.

local function ready_key(band, flow)
  return READY .. ':' .. band .. ':' .. flow
end

local function cluster_of(item)  -- the one that it names, whose API server must answer
  return string.match(item, '^[^/]*')
end

local has_causes = has_rare(CAUSES)

local function cause_of(item)  -- nil if it is the cluster that it names
  return has_causes and call('HGET', CAUSES, item) or nil
end

local function flow_of(item)
  local cause = cause_of(item)
  return cause and cause .. '>' or cluster_of(item)
end

local function cluster_of_flow(flow)
  return (string.gsub(flow, '>$', ''))
end

local function set_cause(item, cause)
  if cause ~= '' then
    call('HSET', CAUSES, item, cause)
    has_causes = true
  elseif has_causes then
    call('HDEL', CAUSES, item)
  end
end

-- By how much a turn advances the virtual time of a flow: 1, divided by its cluster's weight (Q9).
local STEPS = nil

local function step_of(flow)
  if not STEPS then
    STEPS = {}
    for name, step in string.gmatch(ARGV[1], ' ([^=]+)=(%S+)') do STEPS[name] = tonumber(step) end
  end
  return STEPS[cluster_of_flow(flow)] or 1
end

-- A flow joins the turns of a band behind whoever is next, so that leaving and joining again never
-- wins a turn (Q9).
local function join_turns(band, cluster)
  local next_up = call('ZRANGE', TURNS[band], 0, 0, 'WITHSCORES')
  local score = next_up[2] and tonumber(next_up[2]) + step_of(cluster) or 0
  if call('ZADD', TURNS[band], 'NX', score, cluster) == 1 then has_joined = true end
end

local function leave_turns(band, cluster)
  call('ZREM', TURNS[band], cluster)
  if call('EXISTS', TURNS[band]) == 0 then call('HDEL', CREDITS, band) end
end

-- --- breakers (Q9) -----------------------------------------------------------------------------
--
-- An outage is "<failures in a row> <times opened> <fence of the probe, or ->". The score of an open
-- breaker is the time from which one item may go as a probe: PARKED once that has come and no item
-- was ready, infinite while the probe runs.

local PARKED = -1
local has_outages = has_rare(OUTAGES)

local function read_outage(cluster)
  local value = has_outages and call('HGET', OUTAGES, cluster)
  if not value then return nil end
  local failures, opened, probe = string.match(value, '^(%d+) (%d+) (%S+)$')
  return tonumber(failures), tonumber(opened), probe
end

local function write_outage(cluster, failures, opened, probe)
  call('HSET', OUTAGES, cluster, failures .. ' ' .. opened .. ' ' .. probe)
  has_outages = true
end

local function open_until(cluster)  -- nil if the breaker is closed
  local at = has_outages and call('ZSCORE', BREAKERS, cluster)
  return at and tonumber(at) or nil
end

local function allow_probe(cluster)
  call('ZADD', BREAKERS, whole(NOW), cluster)
  is_probe_due = true
end

-- The first item of this flow is ready in this band.
local function enter(band, cluster)
  local at = open_until(cluster)
  if not at then
    join_turns(band, cluster)
  elseif at == PARKED then
    allow_probe(cluster)
  end
end

local function open_breaker(cluster, pause)
  await_time()
  call('ZADD', BREAKERS, whole(NOW + pause), cluster)
  for band = 0, 2 do leave_turns(band, cluster) end
end

local function close_breaker(cluster)
  if call('ZREM', BREAKERS, cluster) == 0 then return end
  for band = 0, 2 do
    if call('EXISTS', ready_key(band, cluster)) == 1 then join_turns(band, cluster) end
  end
end

-- The probe has ended and proved nothing: another one may go.
local function end_probe(item, fence)
  local cluster = cluster_of(item)
  local failures, opened, probe = read_outage(cluster)
  if probe ~= fence then return end
  write_outage(cluster, failures, opened, '-')
  allow_probe(cluster)
end

-- --- becoming ready ----------------------------------------------------------------------------

local function make_ready(item, band, since)
  local flow = flow_of(item)
  local key = ready_key(band, flow)
  call('ZADD', key, whole(since), item)
  if call('ZCARD', key) == 1 then enter(band, flow) end
end

local function withdraw_ready(item, band)
  local flow = flow_of(item)
  local key = ready_key(band, flow)
  if call('ZREM', key, item) == 0 then return false end
  if call('EXISTS', key) == 0 then leave_turns(band, flow) end
  return true
end

-- --- dirty (Q1) --------------------------------------------------------------------------------

local function parse_dirty(value)
  local band, since = string.match(value, '^(%d) (%d+)$')
  return tonumber(band), tonumber(since)
end

local function write_dirty(item, band, since)
  call('HSET', DIRTY, item, band .. ' ' .. whole(since))
end

local function is_held(item)  -- a dirty key that must not be ready
  return call('HEXISTS', PROCESSING, item) == 1 or call('ZSCORE', QUARANTINE, item) ~= false
end

-- The cluster whose change made an item dirty is charged for it. A later change of the cluster that
-- the item names moves it to that cluster's own flow, so that no other backlog delays it.
local function assign_flow(item, cause)
  local known = call('HGET', DIRTY, item)
  if not known then
    set_cause(item, cause)
  elseif cause == '' and cause_of(item) then
    local band, since = parse_dirty(known)
    local was_ready = withdraw_ready(item, band)
    set_cause(item, '')
    if was_ready then make_ready(item, band, since) end
  end
end

-- client-go's Add: once only while dirty; ready unless processing. May raise the priority.
local function mark_dirty(item, band, since, trigger)
  remember_trigger(item, trigger)
  local known = call('HGET', DIRTY, item)
  if not known then
    write_dirty(item, band, since)
    if not is_held(item) then make_ready(item, band, since) end
    return
  end
  local old_band, old_since = parse_dirty(known)
  since = math.min(since, old_since)
  if band < old_band then
    write_dirty(item, band, since)
    if withdraw_ready(item, old_band) then make_ready(item, band, since) end
  end
end

local function ready_if_dirty(item)
  local known = call('HGET', DIRTY, item)
  if known then make_ready(item, parse_dirty(known)) end
end

-- --- delayed (Q8) ------------------------------------------------------------------------------

-- client-go's AddAfter keeps the earlier of two times.
local function delay(item, due)
  await_time()
  call('ZADD', DELAYED, 'LT', whole(due), item)
  if call('ZRANGE', DELAYED, 0, 0)[1] == item then call('PUBLISH', NOTIFY, '') end
end

-- --- processing and fences (Q4) ----------------------------------------------------------------

-- "<fence> <band> <dirty since> <trace> <trigger>"; fence = "<taken at>.<request token>.<generation>".
local function parse_processing(value)
  local fence, band, since, trace, trigger =
    string.match(value, '^(%S+) (%d) (%d+) (%S*) (.*)$')
  return fence, tonumber(band), tonumber(since), trigger, trace
end

-- Whether this value of PROCESSING, false if there is none, is of exactly this fence: otherwise
-- another owner has the item, or nobody.
local function has_fence(value, fence)
  return value and string.sub(value, 1, #fence + 1) == fence .. ' '
end

local function held_under(item, fence)  -- the value; nil if it is not of this fence
  local value = call('HGET', PROCESSING, item)
  return has_fence(value, fence) and value or nil
end

-- A run that did not happen: the item is dirty again, in its old place.
local function return_to_queue(item, band, since, trigger, trace)
  recall_trace(item, trace)
  if call('HEXISTS', DIRTY, item) == 1 and not is_held(item) then ready_if_dirty(item) end
  mark_dirty(item, band, since, trigger)
end

local function token_of(fence)
  return string.match(fence, '^%d+%.([^.]+)%.')
end

-- Ends the leases of items, which were taken under these fences.
local function end_leases(items, fences)
  if has_outages then
    for i, item in ipairs(items) do end_probe(item, fences[i]) end
  end
  call('HDEL', PROCESSING, unpack(items))
  call('ZREM', LEASES, unpack(items))
  if has_rare(SUSPECTS) then call('HDEL', SUSPECTS, unpack(items)) end
  has_ended = true
end
