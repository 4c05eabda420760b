-- failover: read all that a failover depends on, beside the thread itself.
--
-- KEYS[1]  moonfold:providers
-- KEYS[2]  moonfold:failovers:<thread>   sorted set, the point of the thread -> when it went on
-- ARGV[1]  failovers before this time do not count, in milliseconds since the epoch
-- ARGV[2], ...  the instances whose standing is wanted
--
-- Returns the failovers as pairs of point and time, the oldest first, and the standings, nil where
-- nothing is known.

local standings = {}
if #ARGV > 1 then
  standings = redis.call('HMGET', KEYS[1], unpack(ARGV, 2))
end
return {redis.call('ZRANGEBYSCORE', KEYS[2], ARGV[1], '+inf', 'WITHSCORES'), standings}
