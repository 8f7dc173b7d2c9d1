-- The last step of dropping a cluster: unlinks its remaining keys and appends it to the feed.
--
-- KEYS  1 counter  2 feed, then the keys to unlink
-- ARGV  1 length of the feed  2 cluster  3 number of shards

for index = 3, #KEYS do redis.call('UNLINK', KEYS[index]) end
local at = { cluster = ARGV[2], resource = '' }
append_to_feed(KEYS[2], ARGV[1], next_counter(KEYS[1], ARGV[3]), 'dropped', at, '')
return #KEYS - 2
