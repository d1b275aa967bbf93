-- Enters a part of a crawl's digests in alldupes; the first crawl that was committed stays.
-- KEYS  1 h:{id}  2 alldupes  3 dedupe:committing
-- ARGV  1 crawl  2 cursor  3 about how many
-- Gives the next cursor; "0" after the last part, "" if the commit was taken back meanwhile.
if redis.call('SISMEMBER', KEYS[3], ARGV[1]) == 0 then return '' end
local answer = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3])
local found = answer[2]
for i = 1, #found, 2 do
  redis.call('HSETNX', KEYS[2], found[i], ARGV[1])
end
return answer[1]
