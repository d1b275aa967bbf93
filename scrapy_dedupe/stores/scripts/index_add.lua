-- Enters records of an uncommitted crawl and adds to its counts, once for each token.
-- KEYS  1 uncommittedcrawls  2 dedupe:committing  3 h:{id}  4 dedupe:where:{id}  5 dedupe:files:{id}
--       6 h:{id}:counts  7 dedupe:crawl:{id}  8 allcrawls  9 canceledcrawls  10 dedupe:urls:{id}
--       11 dedupe:needs:{id}
-- ARGV  1 crawl  2 token  3-6 the four counts  7 how many records  8 how many URLs, then for each record:
--       digest, its short form, entry, file name or "", offset and record id as packed, or "";
--       for each URL its hash and what was recorded; and the needs
-- Gives "ok" or the state that does not allow it.
local crawl = ARGV[1]
if redis.call('SISMEMBER', KEYS[1], crawl) == 0 then
  if redis.call('SISMEMBER', KEYS[8], crawl) == 1 then return 'committed' end
  if redis.call('SISMEMBER', KEYS[9], crawl) == 1 then return 'canceled' end
  return 'unknown'
end
if redis.call('SISMEMBER', KEYS[2], crawl) == 1 then
  return 'committing'
end
-- A client that lost the connection asks again; the counts must not be added twice.
if redis.call('HGET', KEYS[7], 'token') == ARGV[2] then
  return 'ok'
end
redis.call('HSET', KEYS[7], 'token', ARGV[2])
local numbers = {}
local after_records = 9 + 5 * ARGV[7]
local after_urls = after_records + 2 * ARGV[8]
for i = 9, after_records - 1, 5 do
  local file, rest = ARGV[i + 3], ARGV[i + 4]
  local number = 16777215
  if file ~= '' then
    number = numbers[file] or redis.call('ZSCORE', KEYS[5], file)
    if not number then
      number = redis.call('ZCARD', KEYS[5])
      redis.call('ZADD', KEYS[5], number, file)
    end
    numbers[file] = tonumber(number)
    number = numbers[file]
  end
  if redis.call('HSETNX', KEYS[3], ARGV[i], ARGV[i + 2]) == 1 and rest ~= '' then
    local high = math.floor(number / 65536)
    local middle = math.floor(number / 256) % 256
    local place = string.char(high, middle, number % 256) .. rest
    if redis.call('HSETNX', KEYS[4], ARGV[i + 1], place) == 0 then
      -- Two digests with one short form: better no place at all than that of another record.
      redis.call('HSET', KEYS[4], ARGV[i + 1], '')
    end
  end
end
for i = after_records, after_urls - 1, 2 do
  redis.call('HSET', KEYS[10], ARGV[i], ARGV[i + 1])
end
for i = after_urls, #ARGV do
  redis.call('SADD', KEYS[11], ARGV[i])
end
local names = {'totalUrls', 'dupeUrls', 'conservedSize', 'totalCrawlSize'}
for i, name in ipairs(names) do
  if ARGV[2 + i] ~= '0' then
    redis.call('HINCRBY', KEYS[6], name, ARGV[2 + i])
  end
end
return 'ok'
