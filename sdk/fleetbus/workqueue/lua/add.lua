-- Add (rule Q1): marks items dirty.
--
-- Keys: dirty, triggers, traces, causes, processing, quarantine, ready, turns, credits, breakers,
--       outages, liveness, notify
-- ARGV  for each item: item, band, trigger, trace, cause or ''
-- Answer: nothing.

for i = 2, #ARGV, 5 do
  assign_flow(ARGV[i], ARGV[i + 4])
  -- One microsecond apart, so that a batch keeps its order.
  mark_dirty(ARGV[i], tonumber(ARGV[i + 1]), NOW + (i - 2) / 5, ARGV[i + 2])
  remember_trace(ARGV[i], ARGV[i + 3])
end
notify_takers()
