-- Begins (ARGV[2] = "begin") or ends ("end") the cancelling of a crawl; between them lies index_release.lua.
-- KEYS  1 allcrawls  2 uncommittedcrawls  3 canceledcrawls  4 dedupe:committing  5 dedupe:crawl:{id}
--       6... the keys of the crawl
-- ARGV  1 crawl  2 step
-- Gives "ok", "done" (nothing is left to do), "committed" or "unknown".
local crawl = ARGV[1]
if ARGV[2] == 'begin' then
  if redis.call('SISMEMBER', KEYS[1], crawl) == 1 then return 'committed' end
  if redis.call('SMOVE', KEYS[2], KEYS[3], crawl) == 1 then
    redis.call('SREM', KEYS[4], crawl)
    redis.call('HSET', KEYS[5], 'canceling', '1')
    return 'ok'
  end
  if redis.call('HEXISTS', KEYS[5], 'canceling') == 1 then return 'ok' end
  if redis.call('SISMEMBER', KEYS[3], crawl) == 1 then return 'done' end
  return 'unknown'
end
if redis.call('HDEL', KEYS[5], 'canceling') == 1 then
  for i = 6, #KEYS do
    redis.call('UNLINK', KEYS[i])
  end
  redis.call('HDEL', KEYS[5], 'stats', 'incomplete', 'token')
end
return 'ok'
