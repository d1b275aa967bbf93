-- Looks up payloads: in the crawl itself, then through alldupes in the crawls that others may refer to.
-- The code of index_common.lua is in helpers(), which returns merged().
-- ARGV  2 own crawl  3 "1" to exclude crawls that Browsertrix has marked for removal, then for each payload: digest, its
--       short form, its other spelling or "", the short form of the other spelling
-- Returns for each payload false, or one string, since clients read one string faster than a nested list:
-- crawl, NUL, entry, NUL, length of the place in decimal, NUL, place, name of the file
local call = redis.call
local own = ARGV[2]
local records = 'h:' .. own
local answer = {}
local committed, is_importing, merged = {}, nil, nil
local is_lasting = ARGV[3] == '1' and call('EXISTS', 'canceledcrawls') == 1

-- Crawl and entry of a digest that alldupes assigns to a crawl.
local function of_any(digest, crawl)
  if is_importing == nil then is_importing = call('EXISTS', 'dedupe:begun') == 1 end
  if committed[crawl] == nil then committed[crawl] = call('SISMEMBER', 'allcrawls', crawl) == 1 end
  if committed[crawl] and not is_importing then
    return crawl, call('HGET', 'h:' .. crawl, digest)
  end
  merged = merged or helpers()
  return merged(digest, crawl)
end

local function of_other(digest, crawl)
  local other, entry = of_any(digest, crawl)
  -- A committed crawl that is marked remains the original only for existing revisits.
  if entry and is_lasting and call('SISMEMBER', 'canceledcrawls', other) == 1 then return nil end
  return other, entry
end

for i = 4, #ARGV, 4 do
  local digest, other = ARGV[i], ARGV[i + 2]
  local crawl, short = own, ARGV[i + 1]
  local found = call('HMGET', records, digest, other)
  local entry = found[1]
  if not entry and found[2] and other ~= '' then
    entry, short = found[2], ARGV[i + 3]
  end
  if not entry then
    found = call('HMGET', 'alldupes', digest, other)
    if found[1] then
      crawl, entry = of_other(digest, found[1])
    end
    if not entry and found[2] and other ~= '' then
      crawl, entry = of_other(other, found[2])
      short = ARGV[i + 3]
    end
  end
  if entry then
    local place = call('HGET', 'dedupe:where:' .. crawl, short)
    local file = ''
    if place and #place >= 8 then
      local a, b, c = string.byte(place, 1, 3)
      local number = a * 65536 + b * 256 + c
      file = call('ZRANGE', 'dedupe:files:' .. crawl, number, number)[1] or ''
    end
    place = place or ''
    answer[#answer + 1] = table.concat({crawl, '\0', entry, '\0', #place, '\0', place, file})
  else
    answer[#answer + 1] = false
  end
end
return answer
