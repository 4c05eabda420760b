-- figures: how the arq queues stand, and the dead letters, in one round trip.
--
-- KEYS[1..n-1]  the queues
-- KEYS[n]       moonfold:rejected
-- ARGV[1]       how many ids at a queue's head to look at for those in progress, see `claim`
--
-- A job stays in its queue until it is done, so a queue's members are waiting, in progress, or deferred.
-- Those in progress have a claim, arq's `arq:in-progress:<job id>`, and are near the head, because that is
-- where workers take them. The claim of a worker that was killed counts until it expires: so long nobody
-- else takes the job. No figure is kept beside the queue, so none can be wrong after a crash.
--
-- The clock is the server's: the answer is the same whoever asks.
--
-- Returns four numbers for each queue (waiting, in progress, deferred, and how long ago the oldest became
-- due, in milliseconds), then for the dead letters: how many, and the id of the latest ('' if none).

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local figures = {}
local function add(figure)
  figures[#figures + 1] = figure
end

for i = 1, #KEYS - 1 do
  local queue = KEYS[i]
  local due = redis.call('ZCOUNT', queue, '-inf', now)
  local head = redis.call('ZRANGEBYSCORE', queue, '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
  local claims = {}
  for j = 1, #head, 2 do
    claims[#claims + 1] = 'arq:in-progress:' .. head[j]
  end
  local running = #claims > 0 and redis.call('EXISTS', unpack(claims)) or 0
  add(due - running)
  add(running)
  add(redis.call('ZCARD', queue) - due)
  add(head[2] and now - tonumber(head[2]) or 0)
end

add(redis.call('XLEN', KEYS[#KEYS]))
local latest = redis.call('XREVRANGE', KEYS[#KEYS], '+', '-', 'COUNT', 1)
add(latest[1] and latest[1][1] or '')
return figures
