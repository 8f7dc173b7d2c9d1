-- Applies a batch of events to the snapshot, in order: the one write path (rules P1 to P5).
--
-- KEYS  1 generation  2 counter  3 feed  4 clusters  5 settled version  6 prior states, then for each
--       lineage
--       bodies guards tombstones order deleted deletion-times epochs scopes
--       (and, named by terms: the label sets and owner sets of the keys that change)
-- ARGV  1 length of the feed  2 prefix of the owner sets  3 '1' if the store is full, else ''
--       4 number of shards  5 number of lineages, then for each lineage
--       cluster resource scope incarnation list-version epoch-id label-prefix version kind
--       kube-system-uid, then for each event
--       head (lineage code version uid degraded labels owners, separated by 0x1F), key, body
--
-- A lineage has what consecutive events share: cluster, resource, scope, incarnation and rank.
-- Codes: L listed, A other live state, D deleted, S left the selection (rule W6), E end of the epoch,
-- whose version is the count; it is degraded if the type itself was removed (rule W17). An empty
-- body means none.
-- In a full store events that need no room are applied all the same, so that a list can end there:
-- its floor is what frees tombstones (rule P3).
-- Answer: one letter per event (a applied, t stale, s same, r refused, f no room for it), the
-- indexes of lineages whose epoch became complete, and the count so far of the last end marker.

local KEYS_FIXED, KEYS_EACH, ARGS_FIXED, ARGS_LINEAGE, ARGS_EVENT = 6, 8, 5, 10, 3
local HEAD = '^(%d+)\31(%a)\31(%d+)\31([^\31]*)\31([^\31]*)\31()'
local APPLIED, STALE, SAME, REFUSED, FULL = 'a', 't', 's', 'r', 'f'
local COUNTER, FEED, FLEET = KEYS[2], KEYS[3], KEYS[4]
local SETTLED, PRIOR, PRIOR_MOST = KEYS[5], KEYS[6], 2000
local FEED_LENGTH, OWNER_PREFIX = ARGV[1], ARGV[2]
local IS_FULL, SHARDS, LINEAGES = ARGV[3] == '1', ARGV[4], tonumber(ARGV[5])

local states, completed, counted = {}, {}, '0'
local settled -- the settled version
local held_guards, new_guards = {}, {} -- both: key of the hash -> object key -> guard

local function read_shard()
  local held = redis.call('MGET', KEYS[1], SETTLED)
  settled = held[2] or ''
  return why_not_ours(held[1], SHARDS)
end

local refusal = read_shard()
if refusal then return redis.error_reply(refusal) end

local function read_lineage(index)
  local k = KEYS_FIXED + (index - 1) * KEYS_EACH
  local a = ARGS_FIXED + (index - 1) * ARGS_LINEAGE
  return {
    index = index,
    bodies = KEYS[k + 1], guards = KEYS[k + 2], tombstones = KEYS[k + 3], order = KEYS[k + 4],
    deleted = KEYS[k + 5], times = KEYS[k + 6], epochs = KEYS[k + 7], scopes = KEYS[k + 8],
    cluster = ARGV[a + 1], resource = ARGV[a + 2], scope = ARGV[a + 3],
    incarnation = ARGV[a + 4], version = ARGV[a + 5], id = ARGV[a + 6],
    rank = ARGV[a + 5] .. ' ' .. ARGV[a + 6],
    mark = make_mark(ARGV[a + 3], ARGV[a + 5], ARGV[a + 6]),
    label_prefix = ARGV[a + 7], served_version = ARGV[a + 8], kind = ARGV[a + 9], uid = ARGV[a + 10],
    is_member = redis.call('HEXISTS', FLEET, ARGV[a + 1]) == 1, -- P1
  }
end

-- Guards are read together before the first event, and written together after the last one.
local function load_guards(lineages, events)
  local wanted = {}
  for _, event in ipairs(events) do
    local lineage = lineages[event.lineage]
    if lineage.is_member and event.code ~= 'E' then
      local keys = wanted[lineage.guards] or {}
      wanted[lineage.guards] = keys
      keys[#keys + 1] = event.key
    end
  end
  for guards, keys in pairs(wanted) do -- a batch has at most 500 events, so unpack is safe (P16)
    local texts, found = redis.call('HMGET', guards, unpack(keys)), {}
    for i, key in ipairs(keys) do found[key] = read_guard(texts[i]) end
    held_guards[guards] = found
  end
end

local function entry_of(lineage, key)
  return held_guards[lineage.guards][key]
end

local function put_entry(lineage, key, entry)
  held_guards[lineage.guards][key] = entry
  local changed = new_guards[lineage.guards] or {}
  new_guards[lineage.guards] = changed
  changed[key] = entry
end

local function save_guards()
  for guards, changed in pairs(new_guards) do
    local pairs_of = {}
    for key, entry in pairs(changed) do
      pairs_of[#pairs_of + 1] = key
      pairs_of[#pairs_of + 1] = write_guard(entry)
    end
    redis.call('HSET', guards, unpack(pairs_of))
  end
end

-- Where the epochs of the lineage's scope stand; read once per script, counts and ends on demand.
local function state_of(lineage)
  local state = states[lineage.epochs]
  if not state then
    local held = redis.call('HMGET', lineage.epochs, 'incarnation', 'floor', 'completed')
    local version, id = string.match(held[3] or ' ', '^(%d*) (%d*)$')
    state = { incarnation = held[1] or '', floor = held[2] or '', version = version, id = id,
      counts = {}, ends = {}, dirty = {} }
    states[lineage.epochs] = state
  end
  if newer(lineage.incarnation, state.incarnation) then -- P2: floor, rank and counts start again
    redis.call('DEL', lineage.epochs)
    redis.call('HSET', lineage.epochs, 'incarnation', lineage.incarnation, 'uid', lineage.uid)
    redis.call('SADD', lineage.scopes, lineage.resource .. '|' .. lineage.scope)
    state.incarnation, state.floor, state.version, state.id = lineage.incarnation, '', '', ''
    state.counts, state.ends, state.dirty, state.completed_by = {}, {}, {}, nil
  end
  return state
end

local function load_epoch(lineage, state)
  local rank = lineage.rank
  if not state.counts[rank] then
    local held = redis.call('HMGET', lineage.epochs, 'count:' .. rank, 'end:' .. rank)
    state.counts[rank] = tonumber(held[1] or '0')
    state.ends[rank] = tonumber(held[2] or '-1')
  end
end

local function forget_epochs_up_to(lineage)
  for _, field in ipairs(redis.call('HKEYS', lineage.epochs)) do
    local version, id = string.match(field, '^%a+:(%d+) (%d+)$')
    if version and not rank_newer(version, id, lineage.version, lineage.id) then
      redis.call('HDEL', lineage.epochs, field)
    end
  end
end

-- An epoch is complete when its end marker is stored and its count is reached, in either order (P5).
local function complete_if_counted(lineage, state)
  if state.counts[lineage.rank] ~= state.ends[lineage.rank] then return end
  state.version, state.id, state.completed_by = lineage.version, lineage.id, lineage
  if newer(lineage.version, state.floor) then state.floor = lineage.version end -- P4
  completed[#completed + 1] = lineage.index
end

-- Last: should this script ever break off, as on a key of a wrong type or in a slot that is being
-- moved, no epoch is complete whose marks are not stored; a sweep would take its objects for gone.
local function save_completed()
  for epochs, state in pairs(states) do
    local lineage = state.completed_by
    if lineage then
      forget_epochs_up_to(lineage)
      redis.call('HSET', epochs, 'completed', lineage.rank, 'floor', state.floor,
        'version', lineage.served_version, 'kind', lineage.kind)
    end
  end
end

local function count_key(lineage, state)
  if not rank_newer(lineage.version, lineage.id, state.version, state.id) then return end
  load_epoch(lineage, state)
  state.counts[lineage.rank] = state.counts[lineage.rank] + 1
  state.dirty[lineage.rank] = true
  complete_if_counted(lineage, state)
end

local function save_counts()
  for epochs, state in pairs(states) do
    for rank in pairs(state.dirty) do
      local version, id = string.match(rank, '^(%d+) (%d+)$')
      if rank_newer(version, id, state.version, state.id) then
        redis.call('HSET', epochs, 'count:' .. rank, string.format('%.0f', state.counts[rank]))
      end
    end
  end
end

-- The complete list would have held it (rule P4). A tombstone counts as not held: the sweep that
-- followed that list has skipped it, so nothing would delete an object that came back under it.
local function is_below_floor(state, entry, event)
  local is_held = entry and entry.state == 'L'
  return event.code ~= 'L' and not is_held and not newer(event.version, state.floor)
end

-- A list that is later than a deletion and holds the object disproves the deletion, however old the
-- object is (rule P2). Only a sweep after two broken lists makes such a deletion, and nothing else
-- would repair it.
local function is_contradicted(lineage, entry, event)
  return event.code == 'L' and entry.state == 'D' and newer(lineage.version, entry.version)
end

-- The same deletion again, after the list that has disproved it.
local function is_refuted(lineage, entry, event)
  if event.code ~= 'D' or entry.state ~= 'L' then return false end
  local version = mark_of(entry.marks, lineage.scope)
  return version ~= nil and newer(version, event.version)
end

-- Compares with the guard (rule P2). The second result tells whether the stored marks are valid.
local function compare(lineage, entry, event)
  if not entry then return APPLIED, false end
  if newer(entry.incarnation, lineage.incarnation) then return STALE, false end
  if newer(lineage.incarnation, entry.incarnation) then return APPLIED, false end
  if is_contradicted(lineage, entry, event) then return APPLIED, true end
  if newer(event.version, entry.version) then
    return is_refuted(lineage, entry, event) and STALE or APPLIED, true
  end
  return event.version == entry.version and SAME or STALE, true
end

-- Rules P2 to P4 together.
local function evaluate(lineage, state, entry, event)
  if newer(state.incarnation, lineage.incarnation) then return STALE, false end
  if event.code == 'L' and (newer(state.floor, lineage.version)
      or rank_newer(state.version, state.id, lineage.version, lineage.id)) then
    return STALE, false
  end
  local outcome, is_same_history = compare(lineage, entry, event)
  if outcome == APPLIED and is_below_floor(state, entry, event) then return STALE, false end
  return outcome, is_same_history
end

-- The same version may still bring news: another scope sees a row that only left a selection, or a
-- newer list carries it through a stricter transform (rule W5).
local function is_news(lineage, state, entry, event, is_raised)
  if event.code == 'D' or event.code == 'S' then return false end
  if entry.state == 'S' then return not is_below_floor(state, entry, event) end
  if entry.state ~= 'L' or not is_raised then return false end
  return event.degraded ~= entry.degraded
    or event.body ~= (redis.call('HGET', lineage.bodies, event.key) or '')
end

local function bury(lineage, entry, event, was_live)
  local last = event.body
  if last == '' then
    local held = entry and (was_live and lineage.bodies or lineage.tombstones)
    last = held and redis.call('HGET', held, event.key) or ''
  end
  if last ~= '' and not IS_FULL then
    redis.call('HSET', lineage.tombstones, event.key, last)
    redis.call('ZADD', lineage.times, now_milliseconds(), event.key)
  end
  redis.call('ZADD', lineage.deleted, '0', event.key)
  if was_live then
    redis.call('HDEL', lineage.bodies, event.key)
    redis.call('ZREM', lineage.order, event.key)
  end
end

local function show(lineage, entry, event, was_live)
  if event.body == '' then
    redis.call('HDEL', lineage.bodies, event.key)
  else
    redis.call('HSET', lineage.bodies, event.key, event.body)
  end
  if was_live then return end
  redis.call('ZADD', lineage.order, '0', event.key)
  if entry then
    redis.call('HDEL', lineage.tombstones, event.key)
    redis.call('ZREM', lineage.deleted, event.key)
    redis.call('ZREM', lineage.times, event.key)
  end
end

-- Keeps the state that a change replaces, of an object that had not changed for long: the stream may
-- not have it any more (rule A9). Nobody may be there to take it, so what waits is bounded.
local function keep_prior(lineage, entry, event)
  if IS_FULL or newer(entry.counter, settled) or entry.incarnation ~= lineage.incarnation then return end
  local body = redis.call('HGET', lineage.bodies, event.key)
  if not body or body == event.body or redis.call('LLEN', PRIOR) >= PRIOR_MOST then return end
  redis.call('RPUSH', PRIOR, table.concat({
    lineage.cluster, lineage.resource, entry.incarnation, entry.uid, entry.version, event.version,
    #event.key, event.key .. body, -- a name may have any character, also SEP
  }, SEP))
end

local function store(lineage, entry, event, marks)
  local was_live = entry ~= nil and entry.state == 'L'
  local is_live = event.code == 'L' or event.code == 'A'
  local counter = next_counter(COUNTER, SHARDS)
  if is_live then
    if was_live then keep_prior(lineage, entry, event) end
    show(lineage, entry, event, was_live)
  else
    bury(lineage, entry, event, was_live) -- also if the key was unknown (rule P3)
    event.terms = NO_TERMS
  end
  local old_terms = was_live and entry.terms or NO_TERMS
  reindex_row(lineage, OWNER_PREFIX, event.key, old_terms, event.terms)
  put_entry(lineage, event.key, {
    state = is_live and 'L' or event.code, version = event.version,
    incarnation = lineage.incarnation, counter = counter,
    uid = event.uid ~= '' and event.uid or (entry and entry.uid or ''),
    degraded = event.degraded, marks = marks, terms = event.terms,
  })
  if is_live or was_live then
    local what = is_live and (was_live and 'modified' or 'added') or 'deleted'
    append_to_feed(FEED, FEED_LENGTH, counter, what, lineage, event.key)
  end
end

-- Whether more would be stored than now; deletions free the memory of the object.
local function needs_room(lineage, entry, event)
  if not entry then return true end
  if event.code == 'D' or event.code == 'S' then return false end
  local held = entry.state == 'L' and redis.call('HSTRLEN', lineage.bodies, event.key) or 0
  return #event.body > held
end

local function apply_event(lineage, state, event)
  local entry = entry_of(lineage, event.key)
  local outcome, is_same_history = evaluate(lineage, state, entry, event)
  if outcome == STALE and not is_same_history then return STALE end
  local old = is_same_history and entry.marks or ''
  local version, id = lineage.version, lineage.id
  if old ~= lineage.mark then version, id = mark_of(old, lineage.scope) end
  local is_raised = event.code == 'L'
    and rank_newer(lineage.version, lineage.id, version or '', id or '')
  if outcome == SAME and is_news(lineage, state, entry, event, is_raised) then outcome = APPLIED end
  if IS_FULL and outcome == APPLIED and needs_room(lineage, entry, event) then return FULL end
  local marks = old
  if is_raised then -- whatever the guard says (rule P5)
    marks = with_mark(old, lineage.scope, lineage.version, lineage.id)
  elseif not version and outcome ~= STALE then -- also for events that another scope sent first
    marks = with_mark(old, lineage.scope, '', '')
  end
  if outcome == APPLIED then
    store(lineage, entry, event, marks)
  elseif marks ~= old then
    entry.marks = marks
    put_entry(lineage, event.key, entry)
  end
  if is_raised then count_key(lineage, state) end
  return outcome
end

local function apply_end(lineage, state, event)
  if newer(state.incarnation, lineage.incarnation) then return STALE end
  if rank_newer(state.version, state.id, lineage.version, lineage.id) then return STALE end -- P4
  if lineage.version == state.version and lineage.id == state.id then
    counted = event.version
    return SAME
  end
  load_epoch(lineage, state)
  state.ends[lineage.rank] = tonumber(event.version)
  redis.call('HSET', lineage.epochs, 'end:' .. lineage.rank, event.version)
  if event.degraded ~= '' then redis.call('HSET', lineage.epochs, event.degraded, lineage.rank) end
  counted = string.format('%.0f', state.counts[lineage.rank])
  complete_if_counted(lineage, state)
  return APPLIED
end

local function read_events()
  local events = {}
  for a = ARGS_FIXED + LINEAGES * ARGS_LINEAGE, #ARGV - ARGS_EVENT, ARGS_EVENT do
    local lineage, code, version, uid, degraded, at = string.match(ARGV[a + 1], HEAD)
    events[#events + 1] = {
      lineage = tonumber(lineage), code = code, version = version, uid = uid, degraded = degraded,
      terms = string.sub(ARGV[a + 1], at), key = ARGV[a + 2], body = ARGV[a + 3],
    }
  end
  return events
end

local function run()
  local lineages, events, outcomes = {}, read_events(), {}
  for index = 1, LINEAGES do lineages[index] = read_lineage(index) end
  load_guards(lineages, events)
  for i, event in ipairs(events) do
    local lineage, outcome = lineages[event.lineage], REFUSED
    if lineage.is_member then
      local apply_one = event.code == 'E' and apply_end or apply_event
      outcome = apply_one(lineage, state_of(lineage), event)
    end
    outcomes[i] = outcome
  end
  save_guards()
  save_counts()
  save_completed()
  return { table.concat(outcomes), completed, counted }
end

return run()
