-- Takes a part of a crawl's digests out of alldupes again, where a commit that was cut off, or a concurrent crawl,
-- has entered them.
-- ARGV  2 crawl  3 token of the resetting or cancelling that this is a part of  4 cursor  5 about how many
-- Gives the next cursor, "0" after the last part; the same one followed by "+" if there were too many; "" if that has
-- ended, so that the crawl is another one now. And how many these were.
local crawl = ARGV[2]
local known = call('HMGET', 'dedupe:crawl:' .. crawl, 'resetting', 'canceling')
if known[1] ~= ARGV[3] and known[2] ~= ARGV[3] then return {'', 0} end
local answer = call('HSCAN', 'h:' .. crawl, ARGV[4], 'COUNT', ARGV[5])
local found = answer[2]
for i = 1, #found, 2 do
  if not leave(found[i], crawl) then return {ARGV[4] .. '+', 0} end
end
return {answer[1], #found / 2}
