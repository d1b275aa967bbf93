-- Ends a commit: moves the crawl and adds its counts, together, hence exactly once.
-- KEYS  1 uncommittedcrawls  2 allcrawls  3 dedupe:committing  4 h:{id}:counts  5 allcounts
--       6 dedupe:crawl:{id}  7 c:{id}:wacz  8 src:d
-- ARGV  1 crawl  2 time
-- Gives "ok", "committed" (another process was faster) or "reopened".
local crawl = ARGV[1]
if redis.call('SISMEMBER', KEYS[2], crawl) == 1 then return 'committed' end
if redis.call('SISMEMBER', KEYS[3], crawl) == 0 then return 'reopened' end
redis.call('SREM', KEYS[3], crawl)
if redis.call('SMOVE', KEYS[1], KEYS[2], crawl) == 0 then return 'reopened' end
for _, name in ipairs({'totalUrls', 'dupeUrls', 'conservedSize', 'totalCrawlSize'}) do
  local count = redis.call('HGET', KEYS[4], name)
  if count and string.match(count, '^%d+$') then
    redis.call('HINCRBY', KEYS[5], name, count)
  end
end
-- Browsertrix's importer passes over containers whose crawl is known already.
for _, item in ipairs(redis.call('LRANGE', KEYS[7], 0, -1)) do
  local good, container = pcall(cjson.decode, item)
  if good and type(container) == 'table' and type(container.filename) == 'string' then
    redis.call('SADD', KEYS[8], container.filename)
  end
end
redis.call('HSET', KEYS[6], 'committed', ARGV[2])
redis.call('HDEL', KEYS[6], 'token')
return 'ok'
