-- Begins a commit, or goes on with one that was cut off.
-- KEYS  1 allcrawls  2 uncommittedcrawls  3 canceledcrawls  4 dedupe:committing  5 dedupe:crawl:{id}
-- ARGV  1 crawl  2 statistics as JSON, or ""
-- Gives "ok", "committed" (nothing is left to do) or the state that does not allow it.
local crawl = ARGV[1]
if redis.call('SISMEMBER', KEYS[1], crawl) == 1 then return 'committed' end
if redis.call('SISMEMBER', KEYS[2], crawl) == 0 then
  if redis.call('SISMEMBER', KEYS[3], crawl) == 1 then return 'canceled' end
  return 'unknown'
end
redis.call('SADD', KEYS[4], crawl)
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[5], 'stats', ARGV[2])
end
return 'ok'
