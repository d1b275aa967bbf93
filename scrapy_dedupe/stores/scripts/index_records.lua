-- A batch of the originals of a crawl, without the hidden ones.
-- ARGV  2 crawl  3 cursor  4 approximate number
-- Returns the next cursor ("0" after the last batch), then digests, each with its entry.
local crawl = ARGV[2]
local answer = call('HSCAN', 'h:' .. crawl, ARGV[3], 'COUNT', ARGV[4])
local found = answer[2]
local given = {answer[1]}
for i = 1, #found, 2 do
  if not hiding(crawl, found[i]) then
    given[#given + 1] = found[i]
    given[#given + 1] = found[i + 1]
  end
end
return given
