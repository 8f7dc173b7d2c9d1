-- Queue.retry, after a failed run (rule Q7): counts a failure and adds after a back-off, which is
-- computed here; may open the breaker of the item's cluster (rule Q9). In client-go: AddRateLimited.
--
-- Keys: processing, attempts, triggers, traces, delayed, breakers, outages, turns, credits, ready,
--       clock, liveness, notify
-- ARGV  2 item  3 fence; the back-off in microseconds: 4 first  5 factor  6 longest
--       7 '1' if the cluster did not answer  8 failures that open its breaker; the breaker's pauses:
--       9 first  10 factor  11 longest  12 the random factor of this pause
-- Answer: the delay in microseconds, or -1 if the fence is refused.

local item, fence = ARGV[2], ARGV[3]
local IS_UNREACHABLE, LIMIT = ARGV[7] == '1', tonumber(ARGV[8])

-- The power may overflow to infinity; `longest` still bounds it.
local function backoff(at, times)
  return math.min(tonumber(ARGV[at]) * tonumber(ARGV[at + 1]) ^ times, tonumber(ARGV[at + 2]))
end

-- Enough failures without a success between them open the breaker; a failed probe opens it for
-- longer. Runs that began before it opened may fail meanwhile: they change nothing.
local function count_unreachable(cluster)
  local failures, opened, probe = read_outage(cluster)
  failures, opened, probe = (failures or 0) + 1, opened or 0, probe or '-'
  local is_open = open_until(cluster) ~= nil
  if (is_open and probe == fence) or (not is_open and failures >= LIMIT) then
    open_breaker(cluster, backoff(9, opened) * tonumber(ARGV[12]))
    opened, probe = opened + 1, '-'
  end
  write_outage(cluster, failures, opened, probe)
end

-- A probe that failed for another reason had an answer: half-open, so that the next failure to reach
-- the cluster opens the breaker again.
local function count_answered(cluster)
  local _, opened, probe = read_outage(cluster)
  if probe ~= fence then return end
  write_outage(cluster, LIMIT - 1, opened, '-')
  close_breaker(cluster)
end

local record = held_under(item, fence)
if not record then return -1 end
local _, _, _, trigger, trace = parse_processing(record)
local failures = call('HINCRBY', ATTEMPTS, item, 1)
local pause = backoff(4, failures - 1)
-- It is not the item's fault, and the breaker protects the cluster from the others.
if IS_UNREACHABLE then pause = math.min(pause, tonumber(ARGV[11])) end
remember_trigger(item, trigger)
recall_trace(item, trace)
delay(item, NOW + pause)
if IS_UNREACHABLE then
  count_unreachable(cluster_of(item))
elseif has_outages then
  count_answered(cluster_of(item))
end
finish()
return math.floor(pause)
