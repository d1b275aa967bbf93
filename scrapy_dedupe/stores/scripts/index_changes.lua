-- Shared code of the scripts that change the crawl index; it follows index_common.lua.
local TOTALS, DONE, WAITERS = 'allcounts', 'src:d', 'dedupe:waiters'
local NEW_DUPES, REBUILDING, REMOVING = 'dedupe:alldupes', 'dedupe:rebuilding', 'dedupe:removing'
local REBUILT, REPLACING = 'dedupe:rebuilt', 'dedupe:replacing'
local QUEUE, QUEUED, CLAIMED, CLAIMS = 'src:q', 'src:qset', 'pending:q', 'dedupe:claims'
local COUNT_NAMES = {'totalUrls', 'dupeUrls', 'conservedSize', 'totalCrawlSize'}

-- State, slot, decoded JSON, token and value of a source that was begun, or nil.
local function begun_source(name)
  local value = call('HGET', BEGUN, name)
  if not value then return nil end
  local state, slot, token, text = parts_of(value)
  local good, source = pcall(cjson.decode, text)
  if not good then return nil end
  return state, slot, source, token, value
end

-- Whether a source belongs to another process: to the one that claimed it last, or else the one that began it.
local function is_taken(name, token)
  local holder = call('HGET', CLAIMS, name)
  if not holder then
    local _, _, _, known = begun_source(name)
    holder = known
  end
  return holder and holder ~= token
end

-- State and value of a source that a process with this token has begun; otherwise "taken" or "dropped", and no value.
local function own_source(crawl, name, token)
  if is_taken(name, token) then return 'taken' end
  local state, _, source, known, value = begun_source(name)
  if not state or known ~= token or state == 'd' or source.crawlId ~= crawl
      or not (has(COMMITTED, crawl) or has(UNCOMMITTED, crawl)) then
    return 'dropped'
  end
  return state, value
end

-- Crawl and entry of a digest in a committed crawl; nil if there is none.
local function committed(digest)
  local crawl, entry = merged(digest)
  if not entry or has(COMMITTED, crawl) then return crawl, entry end
  -- The digest belongs to a concurrent crawl; a crawl that was committed since may have it too.
  for _, other in ipairs(each_open()) do
    entry = has(COMMITTED, other) and call('HGET', 'h:' .. other, digest)
    if entry and not hiding(other, digest) then return other, entry end
  end
  return nil
end

local is_rebuilding = nil
local function rebuilding()
  if is_rebuilding == nil then is_rebuilding = call('EXISTS', REBUILDING) == 1 end
  return is_rebuilding
end

-- Whether the current records of a crawl will be missing from the index that is being built.
local function is_going(crawl)
  return has(REMOVING, crawl) or call('HEXISTS', REPLACING, crawl) == 1
end

-- Adds a digest of a crawl to a merged index. The crawl that was committed first is kept, unless Browsertrix has marked
-- it for removal.
local has_marked = nil
local function enter_one(key, digest, crawl)
  if call('HSETNX', key, digest, crawl) == 1 then return end
  if has_marked == nil then has_marked = call('EXISTS', MARKED) == 1 end
  if has_marked and has(MARKED, call('HGET', key, digest)) and not has(MARKED, crawl) then
    call('HSET', key, digest, crawl)
  end
end

-- Adds a digest of a crawl to the merged index, and to the new one that is being built.
local function enter(digest, crawl)
  enter_one(DUPES, digest, crawl)
  if rebuilding() and not is_going(crawl) then
    enter_one(NEW_DUPES, digest, crawl)
  end
end

-- Removes a digest of a crawl from the merged index. Another open or committing crawl that has it takes it over. Each
-- removal queries all of those crawls, so a call removes a limited number; "false" means that this digest was not removed.
local MOST_ASKED = 20000
local takers, asked = nil, 0
local function leave_one(key, digest, crawl, is_new)
  if call('HGET', key, digest) ~= crawl then return true end
  if asked > 0 and asked + #takers > MOST_ASKED then return false end
  call('HDEL', key, digest)
  takers = takers or call('SUNION', COMMITTED, CONCURRENT, COMMITTING)
  local taker = nil
  asked = asked + #takers + 1
  for _, other in ipairs(takers) do
    local from = is_new and call('HGET', REPLACING, other) or other
    if other ~= crawl and call('HEXISTS', 'h:' .. from, digest) == 1
        and not (is_new and has(REMOVING, other)) then
      local state = hiding(from, digest)
      if not state then
        taker = other
        break
      elseif state == 'e' then
        taker = other
      end
    end
  end
  if taker then call('HSET', key, digest, taker) end
  return true
end

local function leave(digest, crawl)
  return leave_one(DUPES, digest, crawl, false)
    and (not rebuilding() or is_going(crawl) or leave_one(NEW_DUPES, digest, crawl, true))
end

-- The number of a WARC file of the crawl, and whether the file was added. A new file gets a number.
local function file_number(crawl, file)
  local key = 'dedupe:files:' .. crawl
  local number = call('ZSCORE', key, file)
  if number then return tonumber(number), false end
  number = call('ZCARD', key)
  call('ZADD', key, number, file)
  return number, true
end

local function packed_number(number)
  return string.char(math.floor(number / 65536), math.floor(number / 256) % 256, number % 256)
end

-- A packed capture of a URL with the number of its file.
local function with_file(capture, number)
  return string.sub(capture, 1, 8) .. packed_number(number) .. string.sub(capture, 12)
end

-- Stores the place of a new record.
local function set_place(crawl, short, place)
  if call('HSETNX', 'dedupe:where:' .. crawl, short, place) == 0 then
    -- Two digests have the same short form: store no place rather than that of another record.
    call('HSET', 'dedupe:where:' .. crawl, short, '')
  end
end

-- Adds sizes, as SIZE:COUNT,..., to those of the revisits that wait for a digest.
local function add_sizes(key, digest, text)
  local known = call('HGET', key, digest)
  if known then
    local counts, sizes = {}, {}
    for size, count in string.gmatch(known .. ',' .. text, '(%d+):(%d+)') do
      if not counts[size] then sizes[#sizes + 1] = size end
      counts[size] = (counts[size] or 0) + tonumber(count)
    end
    for i, size in ipairs(sizes) do
      sizes[i] = size .. ':' .. string.format('%.0f', counts[size])
    end
    text = table.concat(sizes, ',')
  end
  call('HSET', key, digest, text)
end

local function add_waiting(crawl, digest, text)
  add_sizes('dedupe:waiting:' .. crawl, digest, text)
  call('SADD', WAITERS, crawl)
end

-- The position of a container of the crawl, from 0, and its JSON; nil if there is none with this name.
local function container_place(crawl, filename)
  local items = call('LRANGE', 'c:' .. crawl .. ':wacz', 0, -1)
  for i, item in ipairs(items) do
    local good, container = pcall(cjson.decode, item)
    if good and type(container) == 'table' and container.filename == filename then
      return i - 1, container, item, #items
    end
  end
  return nil, nil, nil, #items
end

local function add_counts(key, counts)
  for i, name in ipairs(COUNT_NAMES) do
    if counts[i] ~= '0' then call('HINCRBY', key, name, counts[i]) end
  end
end

-- Adds the counts of a crawl that was just committed to the sums, and its containers to the done sources.
local function count_commit(crawl)
  for _, name in ipairs(COUNT_NAMES) do
    local count = call('HGET', 'h:' .. crawl .. ':counts', name)
    if count and string.match(count, '^%d+$') then
      call('HINCRBY', TOTALS, name, count)
    end
  end
end

-- Forgets the data of a source that has not ended.
local function forget_source(name)
  call('HDEL', BEGUN, name)
  for _, kind in ipairs({'newurls', 'newwaits', 'entered', 'spare', 'newfiles'}) do
    call('UNLINK', 'dedupe:' .. kind .. ':' .. name)
  end
end

-- Forgets the report data of a crawl.
local function forget_report(crawl)
  call('HDEL', 'dedupe:reports', crawl)
end

-- Forgets all records of a crawl, with its files and containers.
local function forget_records(crawl)
  for _, key in ipairs({'h:' .. crawl, 'h:' .. crawl .. ':counts', 'c:' .. crawl .. ':wacz'}) do
    call('UNLINK', key)
  end
  for _, kind in ipairs({'where', 'files', 'urls', 'needs', 'waiting', 'hidden', 'sources'}) do
    call('UNLINK', 'dedupe:' .. kind .. ':' .. crawl)
  end
  call('SREM', WAITERS, crawl)
  for _, source in ipairs(begun_of(crawl) or {}) do
    forget_source(source[1])
  end
  local merging = call('HGETALL', MERGING)
  for i = 1, #merging, 2 do
    if merging[i + 1] == crawl then
      call('HDEL', MERGING, merging[i])
      forget_source(merging[i])
    end
  end
end

local function name_of(entry)
  local good, source = pcall(cjson.decode, entry)
  if good and type(source) == 'table' and type(source.name) == 'string' then return source.name end
  return nil
end

-- Removes the entries with a name from a list; returns whether there was one.
local function take_out(list, name)
  local is_found = false
  for _, entry in ipairs(call('LRANGE', list, 0, -1)) do
    if name_of(entry) == name then
      call('LREM', list, 0, entry)
      is_found = true
    end
  end
  return is_found
end

-- Removes a source from the queue; it may be claimed, or not in the queue at all.
local function unqueue(name)
  local is_claimed = take_out(CLAIMED, name)
  if call('SREM', QUEUED, name) == 1 and not is_claimed then
    take_out(QUEUE, name)
  end
  call('DEL', CLAIMED .. ':' .. name)
  call('HDEL', CLAIMS, name)
end

-- An answer about the first key with a wrong type, of keys that are each followed by a type; nil if there is none.
local function wrong_type(words, first)
  for i = first, #words, 2 do
    local found = call('TYPE', words[i]).ok
    if found ~= 'none' and found ~= words[i + 1] then
      return {'type', words[i], found, words[i + 1]}
    end
  end
  return nil
end

-- The reason why a crawl cannot be added: a key of another type, a newer format, another payload mode. ARGV[first...] are
-- keys, each followed by its type. Nil if there is none; then the mode of the index is set.
local function refusal(payload, format, first)
  local wrong = wrong_type(ARGV, first)
  if wrong then return wrong end
  local known = call('HGET', KEYS[1], 'format')
  if known and tonumber(known) ~= tonumber(format) then
    return {'newer', known}
  end
  local mode = call('HGET', KEYS[1], 'payload')
  if not mode and call('EXISTS', COMMITTED, UNCOMMITTED, DUPES) > 0 then
    -- Crawls without a format mark are Browsertrix's, which hashes decoded payloads.
    if payload ~= 'decoded' then return {'foreign', 'decoded'} end
  elseif mode and mode ~= payload then
    return {'payload', mode}
  end
  return nil
end

local function mark_index(payload, format)
  if call('HEXISTS', KEYS[1], 'payload') == 0 then
    call('HSET', KEYS[1], 'format', format, 'payload', payload)
  end
end

-- An index without crawls accepts digests of either mode.
local function forget_mode()
  if call('EXISTS', COMMITTED, UNCOMMITTED, BEGUN, DUPES) == 0 then call('HDEL', KEYS[1], 'payload') end
end

