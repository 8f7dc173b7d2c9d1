-- The last step of dropping a cluster: its remaining keys go, and the feed says so.
--
-- KEYS  1 counter  2 feed, then the keys to unlink
-- ARGV  1 length of the feed  2 cluster

for index = 3, #KEYS do redis.call('UNLINK', KEYS[index]) end
append_to_feed(KEYS[2], ARGV[1], next_counter(KEYS[1]), 'dropped', { cluster = ARGV[2], resource = '' }, '')
return #KEYS - 2
