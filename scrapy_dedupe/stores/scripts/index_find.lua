-- Looks up payloads: in the crawl itself, then through alldupes in committed crawls.
-- KEYS  1 h:{own}  2 alldupes  3 allcrawls  4 uncommittedcrawls  5 canceledcrawls
-- ARGV  1 own crawl, then for each payload: digest, its short form
-- Gives for each payload false, or one string, since clients read one string faster than a nested list:
-- crawl, NUL, entry, NUL, length of the place in decimal, NUL, place, name of the file
local states = {}
local all = nil
local answer = {}

local function state_of(crawl)
  if not states[crawl] then
    if redis.call('SISMEMBER', KEYS[3], crawl) == 1 then
      states[crawl] = 'committed'
    elseif redis.call('SISMEMBER', KEYS[4], crawl) == 1 or redis.call('SISMEMBER', KEYS[5], crawl) == 1 then
      states[crawl] = 'cut off'
    else
      states[crawl] = 'gone'
    end
  end
  return states[crawl]
end

for i = 2, #ARGV, 2 do
  local digest = ARGV[i]
  local crawl = ARGV[1]
  local entry = redis.call('HGET', KEYS[1], digest)
  if not entry then
    crawl = redis.call('HGET', KEYS[2], digest)
    local state = crawl and state_of(crawl)
    if state == 'committed' then
      entry = redis.call('HGET', 'h:' .. crawl, digest)
    elseif state == 'cut off' then
      -- A commit that is under way, or was cut off, holds the place of this digest in alldupes. A crawl that
      -- was committed meanwhile may have it too.
      all = all or redis.call('SMEMBERS', KEYS[3])
      for _, other in ipairs(all) do
        crawl = other
        entry = redis.call('HGET', 'h:' .. other, digest)
        if entry then break end
      end
    end
  end
  if entry then
    local place = redis.call('HGET', 'dedupe:where:' .. crawl, ARGV[i + 1])
    local file = ''
    if place and #place >= 8 then
      local a, b, c = string.byte(place, 1, 3)
      local number = a * 65536 + b * 256 + c
      file = redis.call('ZRANGE', 'dedupe:files:' .. crawl, number, number)[1] or ''
    end
    place = place or ''
    answer[#answer + 1] = table.concat({crawl, '\0', entry, '\0', #place, '\0', place, file})
  else
    answer[#answer + 1] = false
  end
end
return answer
