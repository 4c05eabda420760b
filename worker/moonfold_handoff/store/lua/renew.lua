-- renew: let a thread live longer, or as long as it does anyhow.
--
-- KEYS[1], ...  the thread's keys
-- ARGV[1]       its lifetime from now, in seconds

for _, key in ipairs(KEYS) do
  redis.call('EXPIRE', key, ARGV[1], 'GT')
end
