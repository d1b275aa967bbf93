-- Takes a part of a crawl's digests out of alldupes again, where a commit that was cut off has entered them.
-- A digest that another crawl has as well goes to that crawl, if it is committed or on its way to it.
-- KEYS  1 h:{id}  2 alldupes  3 allcrawls  4 dedupe:committing
-- ARGV  1 crawl  2 cursor  3 about how many
-- Gives the next cursor; "0" after the last part.
local answer = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3])
local found = answer[2]
local others = nil
for i = 1, #found, 2 do
  if redis.call('HGET', KEYS[2], found[i]) == ARGV[1] then
    if not others then
      others = redis.call('SMEMBERS', KEYS[3])
      for _, crawl in ipairs(redis.call('SMEMBERS', KEYS[4])) do
        others[#others + 1] = crawl
      end
    end
    redis.call('HDEL', KEYS[2], found[i])
    for _, other in ipairs(others) do
      if other ~= ARGV[1] and redis.call('HEXISTS', 'h:' .. other, found[i]) == 1 then
        redis.call('HSET', KEYS[2], found[i], other)
        break
      end
    end
  end
end
return answer[1]
