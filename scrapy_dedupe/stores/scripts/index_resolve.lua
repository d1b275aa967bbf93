-- Looks up the originals of waiting revisits of a crawl.
-- ARGV  2 crawl, then for each digest: itself, its short form, its other spelling or "", the short form of the other
--       spelling
-- Returns the number of revisits that were resolved.
local crawl = ARGV[2]
local waiting, counts = 'dedupe:waiting:' .. crawl, 'h:' .. crawl .. ':counts'
local is_committed = has(COMMITTED, crawl)
if not is_committed and not has(UNCOMMITTED, crawl) then return 0 end

local function original(digest)
  local entry = call('HGET', 'h:' .. crawl, digest)
  if entry and not hiding(crawl, digest) then return crawl, entry end
  -- A record of a concurrent crawl may still be removed.
  return committed(digest)
end

local resolved = 0
for i = 3, #ARGV, 4 do
  local digest, short = ARGV[i], ARGV[i + 1]
  local sizes = call('HGET', waiting, digest)
  local other, entry = nil, nil
  if sizes then
    other, entry = original(digest)
    if not entry and ARGV[i + 2] ~= '' then
      other, entry = original(ARGV[i + 2])
      short = ARGV[i + 3]
    end
  end
  local place, size = nil, nil
  if entry then
    place, size = string.match(entry, '^(%d+) %d+ %S+ (%d+)$')
  end
  if size then
    local conserved = 0
    for own, count in string.gmatch(sizes, '(%d+):(%d+)') do
      conserved = conserved + math.max(0, size - own) * count
      resolved = resolved + count
    end
    if conserved > 0 then
      conserved = string.format('%.0f', conserved)
      call('HINCRBY', counts, 'conservedSize', conserved)
      if is_committed then call('HINCRBY', TOTALS, 'conservedSize', conserved) end
    end
    if other ~= crawl then
      local file = ''
      local where = call('HGET', 'dedupe:where:' .. other, short)
      if where and #where >= 8 then
        local a, b, c = string.byte(where, 1, 3)
        local number = a * 65536 + b * 256 + c
        file = call('ZRANGE', 'dedupe:files:' .. other, number, number)[1] or ''
        local ends = string.find(file, '\0', 1, true)
        if ends then file = string.sub(file, 1, ends - 1) end
      end
      local word = string.gsub(string.gsub(other, '%%', '%%%%25'), ' ', '%%%%20')
      call('SADD', 'dedupe:needs:' .. crawl, word .. ' ' .. tonumber(place) .. ' ' .. file)
    end
    call('HDEL', waiting, digest)
  end
end
if call('EXISTS', waiting) == 0 then call('SREM', WAITERS, crawl) end
return resolved
