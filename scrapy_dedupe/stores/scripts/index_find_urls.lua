-- Looks up the last capture of URLs: in the crawl itself, else the latest of all committed crawls.
-- ARGV  2 own crawl  3... the hash of each URL
-- Returns for each URL the value that index_values.py describes, or false; and the name of its file, or "".
local own = ARGV[2]
local all = nil
local answer = {}
-- The keys, each with its crawl.
local own_keys = {{'dedupe:urls:' .. own, own}}
for _, source in ipairs(begun_of(own) or {}) do
  own_keys[#own_keys + 1] = {'dedupe:newurls:' .. source[1], own}
end
local merging = call('HGETALL', MERGING)
for i = 1, #merging, 2 do
  if merging[i + 1] == own then own_keys[#own_keys + 1] = {'dedupe:newurls:' .. merging[i], own} end
end

local function latest(keys, hash)
  local found, crawl = nil, nil
  for _, key in ipairs(keys) do
    local value = call('HGET', key[1], hash)
    if value and (not found or is_greater(value, found)) then found, crawl = value, key[2] end
  end
  return found, crawl
end

local function file_of(value, crawl)
  local a, b, c = string.byte(value, 9, 11)
  if not c then return '' end
  local number = a * 65536 + b * 256 + c
  return call('ZRANGE', 'dedupe:files:' .. crawl, number, number)[1] or ''
end

for i = 3, #ARGV do
  local found, crawl = latest(own_keys, ARGV[i])
  if not found then
    if not all then
      all = {}
      for _, crawl in ipairs(call('SMEMBERS', COMMITTED)) do
        all[#all + 1] = {'dedupe:urls:' .. crawl, crawl}
      end
      for j = 1, #merging, 2 do
        if has(COMMITTED, merging[j + 1]) then
          all[#all + 1] = {'dedupe:newurls:' .. merging[j], merging[j + 1]}
        end
      end
    end
    found, crawl = latest(all, ARGV[i])
  end
  answer[#answer + 1] = found or false
  answer[#answer + 1] = found and file_of(found, crawl) or ''
end
return answer
