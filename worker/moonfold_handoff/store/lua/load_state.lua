-- load_state: read a thread's kept state and how far its log goes.
--
-- KEYS[1]  moonfold:{<thread>}:state
-- KEYS[2]  moonfold:{<thread>}:log
--
-- Returns the state's version, the state (nil where none is kept), and the id of the log's last entry
-- (nil where there is no log).

local kept = redis.call('HMGET', KEYS[1], 'v', 's')
local tail = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
return {kept[1], kept[2], tail[1] and tail[1][1] or false}
