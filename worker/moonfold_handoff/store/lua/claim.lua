-- claim: take due jobs from an arq queue, as many as there are free slots, in one round trip.
--
-- KEYS[1]  the queue
-- ARGV[1]  jobs wanted
-- ARGV[2]  how many of the queue's ids to look at
-- ARGV[3]  the worker's token
-- ARGV[4]  lifetime of a claim, in milliseconds
-- ARGV[5], ...  ids of jobs that this worker is running
--
-- What is due is decided by the server's clock, the one that all workers and producers share.
--
-- A claim is arq's `arq:in-progress:<job id>` key, so stock arq workers respect it. A claim of this
-- worker for a job that it is not running is left from a reply that was lost, and is taken up.
--
-- Returns for each: job id, milliseconds since it was due, attempt (from 1), body (nil if it has expired), and the id of the request
-- that takes its place (nil if none does; `enqueue` says when). Attempts are counted in
-- arq's `arq:retry:<job id>`. A key of a job that is not what it should be spoils that job, not the queue.

local running = {}
for i = 5, #ARGV do
  running[ARGV[i]] = true
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local claimed = {}
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'WITHSCORES', 'LIMIT', 0, ARGV[2])
for i = 1, #due, 2 do
  if #claimed / 5 >= tonumber(ARGV[1]) then
    break
  end
  if not running[due[i]] then
    local key = 'arq:in-progress:' .. due[i]
    local holder = redis.pcall('GET', key)
    if type(holder) ~= 'string' or holder == ARGV[3] then
      redis.call('PSETEX', key, ARGV[4], ARGV[3])
      local attempts = 'arq:retry:' .. due[i]
      local attempt = redis.pcall('INCR', attempts)
      if type(attempt) ~= 'number' then
        attempt = 1
        redis.call('SET', attempts, attempt)
      end
      redis.call('EXPIRE', attempts, 88400)
      local body = redis.pcall('GET', 'arq:job:' .. due[i])
      claimed[#claimed + 1] = due[i]
      claimed[#claimed + 1] = now - due[i + 1]
      claimed[#claimed + 1] = attempt
      claimed[#claimed + 1] = type(body) == 'string' and body
      local newer = redis.pcall('GET', 'moonfold:superseded:' .. due[i])
      claimed[#claimed + 1] = type(newer) == 'string' and newer
    end
  end
end
return claimed
