-- Gives an uncommitted crawl a container, or fills the place of one. A committed crawl that has none, or has this one
-- without a hash, may be given it too.
-- KEYS  1 uncommittedcrawls  2 allcrawls  3 canceledcrawls  4 c:{id}:wacz
-- ARGV  1 crawl  2 its file name  3 JSON  4 "fill", or "add" to leave a container with this name as it is
-- Gives the place of the container, or the state that does not allow it.
local crawl = ARGV[1]
local is_open = redis.call('SISMEMBER', KEYS[1], crawl) == 1
if not is_open then
  local is_committed = redis.call('SISMEMBER', KEYS[2], crawl) == 1
  if is_committed and ARGV[4] ~= 'fill' then return 'committed' end
  if not is_committed then
    if redis.call('SISMEMBER', KEYS[3], crawl) == 1 then return 'canceled' end
    return 'unknown'
  end
end
local items = redis.call('LRANGE', KEYS[4], 0, -1)
for i, item in ipairs(items) do
  local good, container = pcall(cjson.decode, item)
  if good and type(container) == 'table' and container.filename == ARGV[2] then
    if not is_open and container.hash and item ~= ARGV[3] then return 'committed' end
    if ARGV[4] == 'fill' then
      redis.call('LSET', KEYS[4], i - 1, ARGV[3])
    end
    return i - 1
  end
end
if not is_open and #items > 0 then return 'committed' end
return redis.call('RPUSH', KEYS[4], ARGV[3]) - 1
