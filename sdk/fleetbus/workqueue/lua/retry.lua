-- AddRateLimited (Q7): ARGV[2] = item, ARGV[3] = fence, then the back-off: ARGV[4] = first delay,
-- ARGV[5] = factor, ARGV[6] = longest delay, in microseconds. Of the breaker (Q9): ARGV[7] = 1 if the
-- cluster did not answer, ARGV[8] = failures that open it, ARGV[9 to 11] = its pauses like the
-- back-off, ARGV[12] = the part of a pause that counts. Keys: processing, attempts, triggers,
-- traces, delayed, breakers, outages, turns, ready, notify. Answers the delay in microseconds, or -1
-- if the fence is refused.

local item, fence = ARGV[2], ARGV[3]
local IS_UNREACHABLE, LIMIT = ARGV[7] == '1', tonumber(ARGV[8])

-- The exponent is bounded: a double's overflow is infinite, and the bound still holds.
local function backoff(at, times)
  return math.min(tonumber(ARGV[at]) * tonumber(ARGV[at + 1]) ^ times, tonumber(ARGV[at + 2]))
end

-- Enough failures without a success between them open the breaker; a probe that failed opens it for
-- longer. Runs from before may fail as well meanwhile, which is no news.
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

-- A probe that failed for another reason had an answer: closed on trial, so that the next one that
-- has none opens it again.
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
-- It is not the item's fault, and the breaker keeps its fellows off the cluster.
if IS_UNREACHABLE then pause = math.min(pause, tonumber(ARGV[11])) end
remember_trigger(item, trigger)
recall_trace(item, trace)
delay(item, NOW + pause)
if IS_UNREACHABLE then
  count_unreachable(cluster_of(item))
elseif has_outages then
  count_answered(cluster_of(item))
end
notify_takers()
return math.floor(pause)
