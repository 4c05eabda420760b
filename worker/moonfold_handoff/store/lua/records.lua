-- records: walk a part of a log and read each item found there, with the content it had at a point.
--
-- KEYS[1]  moonfold:{<thread>}:log
-- KEYS[2]  moonfold:{<thread>}:items   `append` says what it holds
-- ARGV[1]  first sequence of the part
-- ARGV[2]  last sequence of the part
-- ARGV[3]  'up' or 'down'
-- ARGV[4]  entries to look at, at most
-- ARGV[5]  bytes to read, about; at least one entry is looked at
-- ARGV[6]  what the log holds at that point and was not taken back: "<first>-<last> <first>-<last> ...",
--          in order
--
-- Returns the sequence looked at last (what is beyond is still to be walked), then for each entry that is
-- the first record of an item, or of no item: its sequence, the sequence of the record that holds its
-- content at that point, and that record's bytes.

local log, items = KEYS[1], KEYS[2]
local first, last = tonumber(ARGV[1]), tonumber(ARGV[2])
local down = ARGV[3] == 'down'
local entries, bytes = tonumber(ARGV[4]), tonumber(ARGV[5])

local alive = {}
for from, to in string.gmatch(ARGV[6], '(%d+)-(%d+)') do
  alive[#alive + 1] = {tonumber(from), tonumber(to)}
end

local function is_alive(sequence)
  for _, span in ipairs(alive) do
    if sequence >= span[1] and sequence <= span[2] then
      return true
    end
  end
  return false
end

local function id(sequence)
  return string.format('%.0f-0', sequence)
end

local function number(sequence)
  return string.format('%.0f', sequence)
end

local function next_entry(from, to)
  local found
  if down then
    found = redis.call('XREVRANGE', log, id(to), id(from), 'COUNT', 1)[1]
  else
    found = redis.call('XRANGE', log, id(from), id(to), 'COUNT', 1)[1]
  end
  if found then
    local fields = {}
    for i = 1, #found[2], 2 do
      fields[found[2][i]] = found[2][i + 1]
    end
    return tonumber(string.match(found[1], '^%d+')), fields
  end
end

-- The newest record of an item that is alive, as far as it was recorded more than once.
local function newest(position)
  local field = '#' .. number(position)
  local older, records = string.match(redis.call('HGET', items, field) or '', '^(%d+) (.*)$')
  older = tonumber(older)
  while records do
    local found
    for record in string.gmatch(records, '%d+') do
      found = is_alive(tonumber(record)) and tonumber(record) or found
    end
    if found then
      return found
    end
    records = older > 0 and redis.call('HGET', items, field .. '.' .. number(older))
    older = older - 1
  end
  return position
end

local result = {0}
local looked, read, reached = 0, 0, down and first or last

local function walk(from, to)
  while from <= to do
    local sequence, fields = next_entry(from, to)
    if not sequence then
      return
    end
    if not fields.p then
      local record = newest(sequence)
      local event = fields.e or ''
      if record ~= sequence then
        local entry = redis.call('XRANGE', log, id(record), id(record))[1]
        event = entry and entry[2][2] or ''
        read = read + #event
      end
      result[#result + 1] = number(sequence)
      result[#result + 1] = number(record)
      result[#result + 1] = event
    end
    looked, read = looked + 1, read + #(fields.e or '')
    if looked >= entries or read >= bytes then
      reached = sequence
      return true
    end
    if down then
      to = sequence - 1
    else
      from = sequence + 1
    end
  end
end

for i = down and #alive or 1, down and 1 or #alive, down and -1 or 1 do
  if walk(math.max(first, alive[i][1]), math.min(last, alive[i][2])) then
    break
  end
end
result[1] = number(reached)
return result
