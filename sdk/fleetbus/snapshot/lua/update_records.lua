-- Compare-and-set of records: writes new ones if the old ones are unchanged (rules P13, P14).
--
-- KEYS  1 generation  2 clusters  3 resources of the cluster  4 epochs of a scope (or absent)
-- ARGV  1 generation  2 cluster  3 its old record  4 its new record  5 completed rank (with KEYS 4),
--       then for each resource that changes: resource key, old record or '', new record or ''
-- Answer: 1 written, 0 something has changed, -1 another epoch is the completed one.

local GENERATION, CLUSTERS, RESOURCES, EPOCHS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local CLUSTER, ARGS_FIXED, ARGS_RESOURCE = ARGV[2], 5, 3

if redis.call('GET', GENERATION) ~= ARGV[1] then return 0 end
if redis.call('HGET', CLUSTERS, CLUSTER) ~= ARGV[3] then return 0 end
if EPOCHS and redis.call('HGET', EPOCHS, 'completed') ~= ARGV[5] then return -1 end
for a = ARGS_FIXED + 1, #ARGV, ARGS_RESOURCE do
  if (redis.call('HGET', RESOURCES, ARGV[a]) or '') ~= ARGV[a + 1] then return 0 end
end
if ARGV[3] ~= ARGV[4] then redis.call('HSET', CLUSTERS, CLUSTER, ARGV[4]) end
for a = ARGS_FIXED + 1, #ARGV, ARGS_RESOURCE do
  if ARGV[a + 2] == '' then
    redis.call('HDEL', RESOURCES, ARGV[a])
  else
    redis.call('HSET', RESOURCES, ARGV[a], ARGV[a + 2])
  end
end
return 1
