-- Stores how the last run of each request ended (rule Q12). A part of the scripts that do.
--
-- `runs`: hash item -> run. `times`: zset item -> when it ended, in microseconds.
-- `rows`: most items that are kept; then per item: its name, when it ended, the run.

local function note_last_runs(runs, times, rows)
  local added = 0
  if #rows > 1 then
    local ended, at_times = {}, {}
    for at = 2, #rows, 3 do
      ended[#ended + 1], ended[#ended + 2] = rows[at], rows[at + 2]
      at_times[#at_times + 1], at_times[#at_times + 2] = rows[at + 1], rows[at]
    end
    added = redis.call('HSET', runs, unpack(ended))
    redis.call('ZADD', times, unpack(at_times))
  end
  if added == 0 then return end
  local over = redis.call('ZCARD', times) - tonumber(rows[1])
  if over <= 0 then return end
  local oldest = redis.call('ZPOPMIN', times, over)
  for at = 1, #oldest, 2 do
    redis.call('HDEL', runs, oldest[at])
  end
end
