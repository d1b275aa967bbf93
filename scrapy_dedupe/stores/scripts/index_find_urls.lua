-- Looks up the last capture of URLs: in the crawl itself, else the latest of all committed crawls.
-- ARGV  2 own crawl  3... the hash of each URL
-- Returns for each URL the value that index_values.py describes, or false.
local own = ARGV[2]
local all = nil
local answer = {}
local own_keys = {'dedupe:urls:' .. own}
for _, source in ipairs(begun_of(own) or {}) do
  own_keys[#own_keys + 1] = 'dedupe:newurls:' .. source[1]
end
local merging = call('HGETALL', MERGING)
for i = 1, #merging, 2 do
  if merging[i + 1] == own then own_keys[#own_keys + 1] = 'dedupe:newurls:' .. merging[i] end
end

local function latest(keys, hash)
  local found = nil
  for _, key in ipairs(keys) do
    local value = call('HGET', key, hash)
    if value and (not found or is_greater(value, found)) then found = value end
  end
  return found
end

for i = 3, #ARGV do
  local found = latest(own_keys, ARGV[i])
  if not found then
    if not all then
      all = {}
      for _, crawl in ipairs(call('SMEMBERS', COMMITTED)) do
        all[#all + 1] = 'dedupe:urls:' .. crawl
      end
      for j = 1, #merging, 2 do
        if has(COMMITTED, merging[j + 1]) then all[#all + 1] = 'dedupe:newurls:' .. merging[j] end
      end
    end
    found = latest(all, ARGV[i])
  end
  answer[i - 2] = found or false
end
return answer
