-- Adds a batch of a crawl's digests to alldupes; crawls that were committed earlier keep theirs.
-- ARGV  2 crawl  3 token of the commit  4 cursor  5 approximate number
-- Returns the next cursor ("0" after the last batch, "" if the commit was undone meanwhile), and the number of digests.
local crawl = ARGV[2]
if not has(COMMITTING, crawl) or call('HGET', 'dedupe:crawl:' .. crawl, 'committing') ~= ARGV[3] then return {'', 0} end
local answer = call('HSCAN', 'h:' .. crawl, ARGV[4], 'COUNT', ARGV[5])
local found = answer[2]
for i = 1, #found, 2 do
  enter(found[i], crawl)
end
return {answer[1], #found / 2}
