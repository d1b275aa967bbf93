-- Looks up what was recorded last of URLs: in the crawl itself, else the latest of all committed crawls.
-- KEYS  1 dedupe:urls:{own}  2 allcrawls
-- ARGV  for each URL its hash
-- Gives for each URL the value that index_values.py describes, or false.
local all = nil
local answer = {}

-- Lua compares strings by the server's language.
local function is_greater(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a > b end
  end
  return #one > #other
end

for i, hash in ipairs(ARGV) do
  local found = redis.call('HGET', KEYS[1], hash)
  if not found then
    all = all or redis.call('SMEMBERS', KEYS[2])
    for _, crawl in ipairs(all) do
      local value = redis.call('HGET', 'dedupe:urls:' .. crawl, hash)
      if value and (not found or is_greater(value, found)) then
        found = value
      end
    end
  end
  answer[i] = found
end
return answer
