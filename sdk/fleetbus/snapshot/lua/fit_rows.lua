-- Counts the first rows whose bodies fit into a size, without reading them: to copy bodies through a
-- script would cost the server three times what it costs to send them.
--
-- KEYS  1 bodies
-- ARGV  1 most bytes  2… the keys of the objects, at most 500
-- Answer: how many of the keys to read: up to the one whose body reaches the size, so at least one.

local MOST, size = tonumber(ARGV[1]), 0
for i = 2, #ARGV do
  size = size + redis.call('HSTRLEN', KEYS[1], ARGV[i])
  if size >= MOST then return i - 1 end
end
return #ARGV - 1
