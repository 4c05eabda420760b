-- retry: put a job that was rejected on its queue again, once.
--
-- KEYS[1]  moonfold:rejected
-- KEYS[2]  arq:job:<job id>
-- KEYS[3]  moonfold:result:<job id>
-- KEYS[4]  the queue
-- ARGV[1]  the dead letter's id in the stream
-- ARGV[2]  job id
-- ARGV[3]  the job, as `enqueue` has it
-- ARGV[4]  lifetime of the job's body, in milliseconds
--
-- It is due now, by the server's clock.
--
-- The answer that the job had, which says that it failed, makes room for another. One that says
-- otherwise stays, and the job is not done again. The dead letter goes as the job is queued.
--
-- Returns 'queued', also where the job is queued or running already; 'answered'; or 'gone' where there is
-- no such dead letter (any more).

if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then
  return 'gone'
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  local result = redis.call('GET', KEYS[3])
  local ok, answer = pcall(cjson.decode, result or '')
  if ok and type(answer) == 'table' and answer.type ~= 'handoff.failed' then
    return 'answered'
  end
  redis.call('DEL', KEYS[3], 'arq:retry:' .. ARGV[2], 'moonfold:superseded:' .. ARGV[2])
  redis.call('PSETEX', KEYS[2], ARGV[4], ARGV[3])
  local time = redis.call('TIME')
  redis.call('ZADD', KEYS[4], time[1] .. string.format('%03d', math.floor(time[2] / 1000)), ARGV[2])
  redis.call('PUBLISH', KEYS[4] .. ':wake', ARGV[2])
end
redis.call('XDEL', KEYS[1], ARGV[1])
return 'queued'
