-- publish: store a result and tell its session, once, however often the job runs.
--
-- KEYS[1]  moonfold:result:<request id>
-- KEYS[2]  moonfold:results:<session id>   stream of what has been published for the session, and the
--          channel on which a session that listens gets the result itself
-- KEYS[3]  moonfold:token:<hash>        optional: what the reader's token in the result opens
-- ARGV[1]  the result as JSON
-- ARGV[2]  request id
-- ARGV[3]  the result's type
-- ARGV[4]  lifetime of the result, in milliseconds
-- ARGV[5]  entries to keep in the session's stream, about
-- ARGV[6]  with KEYS[3]: the grant as JSON
-- ARGV[7]  with KEYS[3]: its lifetime, in milliseconds
--
-- Returns 1, or 0 where the request has a result already, which stays as it is.

if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[4]) then
  return 0
end
if KEYS[3] then
  redis.call('SET', KEYS[3], ARGV[6], 'PX', ARGV[7])
end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', 'request_id', ARGV[2], 'type', ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('PUBLISH', KEYS[2], ARGV[1])
return 1
