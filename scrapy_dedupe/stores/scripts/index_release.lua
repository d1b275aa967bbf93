-- Takes a part of a crawl's digests out of alldupes again, where a commit that was cut off, or a concurrent crawl,
-- has entered them.
-- ARGV  2 crawl  3 cursor  4 about how many
-- Gives the next cursor; "0" after the last part.
local answer = call('HSCAN', 'h:' .. ARGV[2], ARGV[3], 'COUNT', ARGV[4])
local found = answer[2]
for i = 1, #found, 2 do
  leave(found[i], ARGV[2])
end
return answer[1]
