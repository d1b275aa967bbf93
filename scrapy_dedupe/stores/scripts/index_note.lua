-- Changes what is known of an uncommitted crawl.
-- KEYS  1 uncommittedcrawls  2 dedupe:committing  3 allcrawls  4 canceledcrawls  5 the key that is changed
--       6... for "reset": more keys that are deleted
-- ARGV  1 crawl  2 what: "file", "counts", "incomplete", "complete", "check" or "reset"  3... values
-- Gives "ok" or the state that does not allow it.
local crawl, what = ARGV[1], ARGV[2]
if redis.call('SISMEMBER', KEYS[1], crawl) == 0 then
  if redis.call('SISMEMBER', KEYS[3], crawl) == 1 then return 'committed' end
  if redis.call('SISMEMBER', KEYS[4], crawl) == 1 then return 'canceled' end
  return 'unknown'
end
if what == 'file' then
  if not redis.call('ZSCORE', KEYS[5], ARGV[3]) then
    redis.call('ZADD', KEYS[5], redis.call('ZCARD', KEYS[5]), ARGV[3])
  end
elseif what == 'counts' then
  redis.call('HSET', KEYS[5], 'totalUrls', ARGV[3], 'dupeUrls', ARGV[4], 'conservedSize', ARGV[5],
    'totalCrawlSize', ARGV[6])
elseif what == 'incomplete' then
  redis.call('HSET', KEYS[5], 'incomplete', '1')
elseif what == 'complete' then
  redis.call('HDEL', KEYS[5], 'incomplete')
elseif what == 'reset' then
  redis.call('SREM', KEYS[2], crawl)
  for i = 5, #KEYS do
    redis.call('UNLINK', KEYS[i])
  end
end
return 'ok'
