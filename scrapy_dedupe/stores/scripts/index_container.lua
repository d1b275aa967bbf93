-- Gives an uncommitted crawl a container, or fills the place of one.
-- KEYS  1 uncommittedcrawls  2 allcrawls  3 canceledcrawls  4 c:{id}:wacz
-- ARGV  1 crawl  2 its file name  3 JSON  4 "fill", or "add" to leave a container with this name as it is
-- Gives the place of the container, or the state that does not allow it.
local crawl = ARGV[1]
if redis.call('SISMEMBER', KEYS[1], crawl) == 0 then
  if redis.call('SISMEMBER', KEYS[2], crawl) == 1 then return 'committed' end
  if redis.call('SISMEMBER', KEYS[3], crawl) == 1 then return 'canceled' end
  return 'unknown'
end
for i, item in ipairs(redis.call('LRANGE', KEYS[4], 0, -1)) do
  local good, container = pcall(cjson.decode, item)
  if good and type(container) == 'table' and container.filename == ARGV[2] then
    if ARGV[4] == 'fill' then
      redis.call('LSET', KEYS[4], i - 1, ARGV[3])
    end
    return i - 1
  end
end
return redis.call('RPUSH', KEYS[4], ARGV[3]) - 1
