-- report: take a limit, or a success, into what is known of a provider instance.
--
-- KEYS[1]  moonfold:providers   hash, provider or provider/instance -> its standing as JSON
-- ARGV[1]  now
-- ARGV[2]  the instance
-- ARGV[3]  when it happened; '' where nobody knows, which counts only where nothing is known
-- ARGV[4]  until when the limit holds; '' for a success
-- ARGV[5]  kind of the limit
-- ARGV[6]  '1' where `until` is assumed, because the provider named no time
-- ARGV[7]  how long a success is remembered, so that an older notice that comes late is known to be old
--
-- All times are milliseconds since the epoch. A standing holds kind, noticed, until and assumed of a
-- limit, where there is one, succeeded, where there was a success, and expires: when it means nothing
-- any more. It is then removed as the hash is written, a bounded number of fields at a time.
--
-- Returns 1 where the instance has become available or not, or for longer, else 0.

local SAMPLE = 16

local now, name = tonumber(ARGV[1]), ARGV[2]
local time, limit = tonumber(ARGV[3]), tonumber(ARGV[4])

local function alive(raw)
  local ok, standing = pcall(cjson.decode, raw)
  if ok and type(standing) == 'table' and (tonumber(standing.expires) or 0) > now then
    return standing
  end
end

local sample = redis.call('HRANDFIELD', KEYS[1], SAMPLE, 'WITHVALUES')
for i = 1, #sample, 2 do
  if not alive(sample[i + 1]) then
    redis.call('HDEL', KEYS[1], sample[i])
  end
end

local standing = alive(redis.call('HGET', KEYS[1], name) or '')
if limit and limit <= now or not time and standing then
  return 0
end
standing = standing or {expires = 0}
time = math.min(time or now, now)

local changed = 0
if not limit then
  standing.succeeded = math.max(standing.succeeded or 0, time)
  standing.expires = math.max(standing.expires, standing.succeeded + tonumber(ARGV[7]))
  if standing.noticed and standing.noticed <= standing.succeeded then
    changed = standing['until'] > now and 1 or 0
    standing.kind, standing.noticed, standing['until'], standing.assumed = nil, nil, nil, nil
  end
elseif time >= (standing.succeeded or 0) then
  standing.noticed = math.max(standing.noticed or 0, time)
  if limit > (standing['until'] or 0) then
    changed = 1
    standing.kind, standing['until'], standing.assumed = ARGV[5], limit, ARGV[6] == '1'
    standing.expires = math.max(standing.expires, limit)
  end
end

if standing.expires > now then
  redis.call('HSET', KEYS[1], name, cjson.encode(standing))
  if redis.call('PTTL', KEYS[1]) < standing.expires - now then
    redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', standing.expires))
  end
end
return changed
