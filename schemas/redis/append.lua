-- append: add events to a thread's log, each numbered one after the last.
--
-- KEYS[1]  moonfold:{<thread>}:log     stream of events, entry ids <sequence>-0
-- KEYS[2]  moonfold:{<thread>}:items   hash, item id -> sequence of the item's first record; and in fields
--          that are no item ids:
--          '~'              what was rolled back: "<first>-<last> <first>-<last> ..."
--          '@<item id>'     first sequences that the item had before they were rolled back: "<first> ..."
--          '#<first>'       the later records of an item, so that its content at any point is found without
--                           reading the log: "<n> <sequence> <sequence> ...", the latest ones
--          '#<first>.<k>'   k = 1 ... n: those before them, the oldest in 1
-- KEYS[3]  moonfold:{<thread>}:state   only its lifetime is extended
-- ARGV[1]  expected: the last sequence the producer knows of; 0 for a new thread
-- ARGV[2]  lifetime of the thread after this append, in milliseconds
-- ARGV[3]  largest event accepted, in bytes
-- ARGV[4], ARGV[5], ...  pairs: an event as JSON; the id of the item it records, or ''
--
-- Entry fields: e = the event's bytes; p = the item's first sequence, where this is not its first record.
-- An item whose first record was rolled back is a new one when it is recorded again.
--
-- Returns the last sequence of the log. All or nothing:
--   SEQUENCE_GAP expected=N            the log ends at N, before `expected`
--   SEQUENCE_CONFLICT sequence=N       other bytes are recorded at N already
--   EVENT_TOO_LARGE sequence=N bytes=B limit=L
-- Events whose sequences are taken by the same bytes are accepted and change nothing, so a producer
-- that lost the reply repeats the call. An empty log may begin after 0 only with `thread.forked`.

local RECORDS_BYTES = 256 -- of a list of later records, before the next one is begun

local log, items, state = KEYS[1], KEYS[2], KEYS[3]
local expected, ttl, limit = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local function id(sequence)
  return string.format('%.0f-0', sequence)
end

local last = 0
local tail = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)
if tail[1] then
  last = tonumber(string.match(tail[1][1], '^%d+'))
elseif expected > 0 and ARGV[4] then
  local ok, first = pcall(cjson.decode, ARGV[4])
  if ok and type(first) == 'table' and first.type == 'thread.forked' and first.through == expected then
    last = expected
  end
end

if expected > last then
  return redis.error_reply(string.format('SEQUENCE_GAP expected=%.0f', last))
end

for i = 4, #ARGV, 2 do
  local sequence = expected + (i - 4) / 2 + 1
  if #ARGV[i] > limit then
    return redis.error_reply(string.format(
      'EVENT_TOO_LARGE sequence=%.0f bytes=%d limit=%d', sequence, #ARGV[i], limit))
  end
  if sequence <= last then
    local taken = redis.call('XRANGE', log, id(sequence), id(sequence))
    if not taken[1] or taken[1][2][2] ~= ARGV[i] then
      return redis.error_reply(string.format('SEQUENCE_CONFLICT sequence=%.0f', sequence))
    end
  end
end

local function is_rolled_back(sequence)
  for first, final in string.gmatch(redis.call('HGET', items, '~') or '', '(%d+)-(%d+)') do
    if sequence >= tonumber(first) and sequence <= tonumber(final) then
      return true
    end
  end
  return false
end

local function note_rollback(raw, sequence)
  local ok, event = pcall(cjson.decode, raw)
  if ok and type(event) == 'table' and event.type == 'turns.rolled_back' and tonumber(event.to) then
    local span = string.format('%.0f-%.0f ', event.to + 1, sequence - 1)
    redis.call('HSET', items, '~', (redis.call('HGET', items, '~') or '') .. span)
  end
end

local function note_record(first, number)
  local field = '#' .. first
  local records = redis.call('HGET', items, field) or '0'
  if #records >= RECORDS_BYTES then
    local older, full = string.match(records, '^(%d+) (.*)$')
    older = string.format('%.0f', older + 1)
    redis.call('HSET', items, field .. '.' .. older, full)
    records = older
  end
  redis.call('HSET', items, field, records .. ' ' .. number)
end

local function forget(item, first)
  local earlier = '@' .. item
  redis.call('HSET', items, earlier, (redis.call('HGET', items, earlier) or '') .. first .. ' ')
end

for i = 4, #ARGV, 2 do
  local sequence = expected + (i - 4) / 2 + 1
  if sequence > last then
    local item = ARGV[i + 1]
    local number = string.format('%.0f', sequence)
    local first = item ~= '' and redis.call('HSETNX', items, item, number) == 0
      and redis.call('HGET', items, item)
    if first and is_rolled_back(tonumber(first)) then
      forget(item, first)
      redis.call('HSET', items, item, number)
      first = false
    end
    if first then
      redis.call('XADD', log, id(sequence), 'e', ARGV[i], 'p', first)
      note_record(first, number)
    else
      redis.call('XADD', log, id(sequence), 'e', ARGV[i])
    end
    if item == '' and string.find(ARGV[i], 'turns.rolled_back', 1, true) then
      note_rollback(ARGV[i], sequence)
    end
    last = sequence
  end
end

redis.call('PEXPIRE', log, ttl)
redis.call('PEXPIRE', items, ttl)
redis.call('PEXPIRE', state, ttl)
return string.format('%.0f', last)
