-- enqueue: put a job on an arq queue once, and wake a worker.
--
-- KEYS[1]  arq:job:<job id>
-- KEYS[2]  moonfold:result:<job id>     a request answered already is not done again
-- KEYS[3]  the queue: moonfold:handoffs (interactive) or moonfold:background
-- ARGV[1]  job id; for a handoff, the request id
-- ARGV[2]  the job: {"t":null,"f":<function>,"a":[<argument>],"k":{},"et":<ms since the epoch>}
-- ARGV[3]  when it is due, in milliseconds since the epoch
-- ARGV[4]  lifetime of the job's body, in milliseconds
--
-- Returns 1, or 0 where a job of this id is queued, running or answered: a repeated call is harmless.
-- The published hint on `<queue>:wake` is lost on a worker that is not listening, which then finds the
-- job at its next poll.

if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then
  return 0
end
redis.call('PSETEX', KEYS[1], ARGV[4], ARGV[2])
redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
redis.call('PUBLISH', KEYS[3] .. ':wake', ARGV[1])
return 1
