-- Removes a batch of a crawl's digests from alldupes again, which an interrupted commit or a concurrent crawl has added.
-- ARGV  2 crawl  3 token of the reset or cancellation  4 cursor  5 approximate number
-- Returns the next cursor ("0" after the last batch; the same cursor followed by "+" if there were too many digests; "" if
-- the operation has ended, so that the id belongs to another crawl now), and the number of digests.
local crawl = ARGV[2]
local known = call('HMGET', 'dedupe:crawl:' .. crawl, 'resetting', 'canceling')
if known[1] ~= ARGV[3] and known[2] ~= ARGV[3] then return {'', 0} end
local answer = call('HSCAN', 'h:' .. crawl, ARGV[4], 'COUNT', ARGV[5])
local found = answer[2]
for i = 1, #found, 2 do
  if not leave(found[i], crawl) then return {ARGV[4] .. '+', 0} end
end
return {answer[1], #found / 2}
