-- A part of the originals of a crawl, without those that are hidden.
-- ARGV  2 crawl  3 cursor  4 about how many
-- Gives the next cursor, "0" after the last part, then digests, each with its entry.
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
