-- Shared code that precedes each script of the crawl index. redis_index_keys.py describes the keys. All scripts get one
-- key, dedupe:index, because the protocol needs one; ARGV[1] is "1" if this call may be a repetition.
local COMMITTED, UNCOMMITTED, CANCELED = 'allcrawls', 'uncommittedcrawls', 'dedupe:canceled'
local MARKED = 'canceledcrawls'
local COMMITTING, CONCURRENT, BEGUN = 'dedupe:committing', 'dedupe:concurrent', 'dedupe:begun'
local DUPES, MERGING = 'alldupes', 'dedupe:merging'
local call = redis.call

local function has(key, member)
  return call('SISMEMBER', key, member) == 1
end

-- The state of a crawl. A crawl in allcrawls is committed, whatever other sets it is in.
local function state_of(crawl)
  if has(COMMITTED, crawl) then return 'committed' end
  if has(UNCOMMITTED, crawl) then return 'uncommitted' end
  if call('HEXISTS', CANCELED, crawl) == 1 then return 'canceled' end
  return 'unknown'
end

local function is_uncommitted(crawl)
  return state_of(crawl) == 'uncommitted'
end

-- Removes a crawl from the canceled ones; returns whether it was there. Also removes a mark of Browsertrix: marks are for
-- committed crawls, so a crawl must not have one when it begins or is committed.
local function forget_cancel(crawl)
  return call('HDEL', CANCELED, crawl) + call('SREM', MARKED, crawl) > 0
end

-- Lua's own comparison depends on the locale of the server.
local function is_greater(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a > b end
  end
  return #one > #other
end

-- State, slot, token and JSON of a source from its value in dedupe:begun. A token contains no brace.
local function parts_of(value)
  return string.match(value, '^(.)(.)([^{]*)(.*)$')
end

-- The names of the begun sources of a crawl, each with its state; nil if there is none.
local begun_by_crawl = nil
local function begun_of(crawl)
  if begun_by_crawl == nil then
    begun_by_crawl = {}
    local found = call('HGETALL', BEGUN)
    for i = 1, #found, 2 do
      local state, _, _, text = parts_of(found[i + 1])
      local good, source = pcall(cjson.decode, text)
      if good then
        local names = begun_by_crawl[source.crawlId] or {}
        names[#names + 1] = {found[i], state}
        begun_by_crawl[source.crawlId] = names
      end
    end
  end
  return begun_by_crawl[crawl]
end

-- State and name of the source that hides a digest of a crawl, or nil.
local function hiding(crawl, digest)
  local names = begun_of(crawl)
  if not names then return nil end
  for _, source in ipairs(names) do
    if call('SISMEMBER', 'dedupe:entered:' .. source[1], digest) == 1 then
      return source[2], source[1]
    end
  end
  return nil
end

-- Whether other crawls may refer to a crawl.
local open_crawls = {}
local function is_open(crawl)
  if open_crawls[crawl] == nil then
    open_crawls[crawl] = has(COMMITTED, crawl) or has(CONCURRENT, crawl)
  end
  return open_crawls[crawl]
end

local all_open = nil
local function each_open()
  if not all_open then
    all_open = call('SUNION', COMMITTED, CONCURRENT)
  end
  return all_open
end

-- Crawl and entry of a digest that all crawls may refer to, through alldupes; nil if there is none.
local function merged(digest, crawl)
  crawl = crawl or call('HGET', DUPES, digest)
  if not crawl then return nil end
  if is_open(crawl) then
    local entry = call('HGET', 'h:' .. crawl, digest)
    if not entry then return nil end
    if not hiding(crawl, digest) then return crawl, entry end
  elseif state_of(crawl) == 'unknown' then
    return nil
  end
  -- A running or interrupted commit or import occupies this digest in alldupes. A crawl that was committed meanwhile may
  -- have it too.
  for _, other in ipairs(each_open()) do
    local entry = call('HGET', 'h:' .. other, digest)
    if entry and not hiding(other, digest) then return other, entry end
  end
  return nil
end

