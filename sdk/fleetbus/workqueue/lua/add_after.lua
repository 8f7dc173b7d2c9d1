-- AddAfter (Q8): ARGV[2] = item, ARGV[3] = microseconds from now. Keys: delayed, notify.

delay(ARGV[2], NOW + tonumber(ARGV[3]))
