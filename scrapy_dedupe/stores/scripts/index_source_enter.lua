-- Adds a batch of the digests of a source that is ending to alldupes.
-- ARGV  2 crawl  3 name of the source  4 its token  5 cursor  6 approximate number
-- Returns the next cursor; "0" after the last batch, "" if the source is not ending any more.
local crawl, name = ARGV[2], ARGV[3]
if own_source(crawl, name, ARGV[4]) ~= 'e' then return '' end
local answer = call('SSCAN', 'dedupe:entered:' .. name, ARGV[5], 'COUNT', ARGV[6])
for _, digest in ipairs(answer[2]) do
  enter(digest, crawl)
end
return answer[1]
