-- AddAfter (rule Q8): marks an item dirty later.
--
-- Keys: delayed, clock, notify
-- ARGV  2 item  3 microseconds from now
-- Answer: nothing.

delay(ARGV[2], NOW + tonumber(ARGV[3]))
