-- save_state: keep a folded state, only if it covers more of the log than the one that is kept.
--
-- KEYS[1]  moonfold:{<thread>}:state   hash: v = version, t = through, s = the state
-- KEYS[2]  moonfold:{<thread>}:log     the state lives as long as the log
-- ARGV[1]  version; a state of a newer version is never replaced by an older one
-- ARGV[2]  through: the last sequence folded in
-- ARGV[3]  the state
--
-- Returns 1 if it was saved, else 0.

local lifetime = redis.call('PTTL', KEYS[2])
if lifetime == -2 then
  return 0
end
local kept = redis.call('HMGET', KEYS[1], 'v', 't')
if kept[1] then
  local version, through = tonumber(kept[1]), tonumber(kept[2])
  local mine = tonumber(ARGV[1])
  if version > mine or (version == mine and through >= tonumber(ARGV[2])) then
    return 0
  end
end
redis.call('HSET', KEYS[1], 'v', ARGV[1], 't', ARGV[2], 's', ARGV[3])
if lifetime > 0 then
  redis.call('PEXPIRE', KEYS[1], lifetime)
end
return 1
