-- enqueue: put a job on an arq queue once, and wake a worker.
--
-- KEYS[1]  arq:job:<job id>
-- KEYS[2]  moonfold:result:<job id>     a request answered already is not done again
-- KEYS[3]  the queue: moonfold:handoffs (interactive) or moonfold:background
-- KEYS[4]  moonfold:pending:<session>/<thread>   optional, for what a newer request takes the place of:
--          the session's requests for the thread that wait or run, by their `through`
-- ARGV[1]  job id; for a handoff, the request id
-- ARGV[2]  the job: {"t":null,"f":<function>,"a":[<argument>],"k":{},"et":<ms since the epoch>}
-- ARGV[3]  when it is due, in milliseconds since the epoch by the server's clock; 0: now
-- ARGV[4]  lifetime of the job's body, in milliseconds
-- ARGV[5]  with KEYS[4]: the request's `through`
--
-- With KEYS[4], of two requests that wait the one of the lower `through` is superseded by the other:
-- `moonfold:superseded:<job id>` then names the one that takes its place, and the worker that claims it
-- answers `handoff.failed`, code `superseded`. What runs already is answered as it would have been.
-- Forks and preparations give no KEYS[4], and without it nothing is superseded.
--
-- Returns 1, or 0 where a job of this id is queued, running or answered: a repeated call is harmless.
-- The published hint on `<queue>:wake` is lost on a worker that is not listening, which then finds the
-- job at its next poll.

if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then
  return 0
end
redis.call('PSETEX', KEYS[1], ARGV[4], ARGV[2])

if KEYS[4] then
  local through = ARGV[5]
  local function waits(job)
    return redis.call('EXISTS', 'arq:job:' .. job) == 1
  end
  local function supersede(older, newer)
    redis.call('SET', 'moonfold:superseded:' .. older, newer, 'PX', ARGV[4])
  end
  local furthest = redis.call('ZREVRANGE', KEYS[4], 0, 0, 'WITHSCORES')
  while furthest[1] and not waits(furthest[1]) do
    redis.call('ZREM', KEYS[4], furthest[1])
    furthest = redis.call('ZREVRANGE', KEYS[4], 0, 0, 'WITHSCORES')
  end
  if furthest[1] and tonumber(furthest[2]) > tonumber(through) then
    supersede(ARGV[1], furthest[1])
  else
    for _, older in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', '(' .. through)) do
      if waits(older) then
        supersede(older, ARGV[1])
      end
    end
    redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', '(' .. through)
    redis.call('ZADD', KEYS[4], through, ARGV[1])
    redis.call('PEXPIRE', KEYS[4], ARGV[4])
  end
end

local due = ARGV[3]
if tonumber(due) == 0 then
  local time = redis.call('TIME')
  due = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
end
redis.call('ZADD', KEYS[3], due, ARGV[1])
redis.call('PUBLISH', KEYS[3] .. ':wake', ARGV[1])
return 1
