-- Add (Q1): ARGV[2..] = (item, band, trigger, trace) for each. Keys: dirty, triggers, traces,
-- processing, quarantine, ready, turns, credits, wake. Answers nothing.

for i = 2, #ARGV, 4 do
  -- One microsecond apart, so that a batch keeps its order.
  mark_dirty(ARGV[i], tonumber(ARGV[i + 1]), NOW + (i - 2) / 4, ARGV[i + 2])
  remember_trace(ARGV[i], ARGV[i + 3])
end
announce()
