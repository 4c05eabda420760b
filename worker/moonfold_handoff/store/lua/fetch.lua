-- fetch: read events of a log by their sequences, in one command and one flat reply.
--
-- KEYS[1]  moonfold:{<thread>}:log
-- ARGV[1]  sequences, separated by spaces: one argument costs a client less than many
--
-- Returns for each sequence its event's bytes, or '' where the entry holds none, nil where there is no
-- entry.

local events = {}
for sequence in string.gmatch(ARGV[1], '%d+') do
  local id = sequence .. '-0'
  local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
  local event = entry and ''
  for i = 1, entry and #entry[2] or 0, 2 do
    if entry[2][i] == 'e' then
      event = entry[2][i + 1]
    end
  end
  events[#events + 1] = event or false
end
return events
