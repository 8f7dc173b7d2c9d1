-- Add (Q1): ARGV[2..] = (item, band, trigger) for each. Keys: dirty, triggers, processing,
-- quarantine, ready, turns, credits, wake. Answers nothing.

for i = 2, #ARGV, 3 do
  -- One microsecond apart, so that a batch keeps its order.
  mark_dirty(ARGV[i], tonumber(ARGV[i + 1]), NOW + (i - 2) / 3, ARGV[i + 2])
end
announce()
