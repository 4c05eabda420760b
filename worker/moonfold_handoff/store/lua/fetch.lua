-- fetch: read entries of a log by their sequences, in one command and one reply.
--
-- KEYS[1]  moonfold:{<thread>}:log
-- ARGV     sequences
--
-- Returns for each sequence its entry as XRANGE gives it, or an empty list where there is none.

local entries = {}
for i = 1, #ARGV do
  local id = ARGV[i] .. '-0'
  entries[i] = redis.call('XRANGE', KEYS[1], id, id)
end
return entries
