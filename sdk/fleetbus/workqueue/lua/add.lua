-- Add (Q1): ARGV[2..] = (item, band, trigger, trace, cause or '') for each. Keys: dirty, triggers,
-- traces, causes, processing, quarantine, ready, turns, credits, notify. Answers nothing.

for i = 2, #ARGV, 5 do
  assign_flow(ARGV[i], ARGV[i + 4])
  -- One microsecond apart, so that a batch keeps its order.
  mark_dirty(ARGV[i], tonumber(ARGV[i + 1]), NOW + (i - 2) / 5, ARGV[i + 2])
  remember_trace(ARGV[i], ARGV[i + 3])
end
notify_takers()
