-- Shared by the scripts of the seen texts: the hashes in which texts (t), signatures (s), buckets (b), captures (c) and
-- sources (m) are stored. stores/redis_content.py describes them; all have the hash tag of the key that is passed.
--
-- ARGV: 1 if this call may be a repetition; prefix; lifetime in milliseconds (0: unlimited)

local run, sub, byte, char = redis.call, string.sub, string.byte, string.char
local prefix, lifetime = ARGV[2], tonumber(ARGV[3])

-- Servers keep a hash in the compact form up to 512 fields and 64 bytes per value.
local FULL = 128
local PIECE = 64
local MOST_PIECES = 5
-- A hash that hostile pages have filled is not tidied, since each attempt would read all of it.
local HOSTILE = 8 * FULL

local REF = 5

-- The number of hashes of each kind, and the smallest power of two that is not below it.
local numbers, powers = {}, {}
local KINDS = {'t', 's', 'b', 'c', 'm'}
local stored = run('HMGET', prefix .. 'g', unpack(KINDS))
for place, kind in ipairs(KINDS) do
  numbers[kind], powers[kind] = tonumber(stored[place] or 1), 1
  while powers[kind] < numbers[kind] do
    powers[kind] = 2 * powers[kind]
  end
end

-- The latest time of a page in this call, in milliseconds.
local now = 0

local function number_in(text, first, last)
  local number = 0
  for place = first, last do
    number = number * 256 + byte(text, place)
  end
  return number
end

local function is_forgotten(then_ms, ms)
  return lifetime > 0 and then_ms + lifetime <= ms
end

local function number_of(kind, name)
  local one, two, three, four = byte(name, 1, 4)
  local power = powers[kind]
  local number = (((one * 256 + two) * 256 + three) * 256 + four) % power
  if number >= numbers[kind] then
    number = number - power / 2
  end
  return number
end

local function key_of(kind, name)
  return prefix .. kind .. number_of(kind, name)
end

local function get(kind, name)
  local key = key_of(kind, name)
  local value = run('HGET', key, name)
  local piece, number = value, 0
  while piece and #piece == PIECE do
    number = number + 1
    piece = run('HGET', key, name .. char(number))
    value = value .. piece
  end
  return value
end

local function drop(kind, name)
  run('HDEL', key_of(kind, name), name, name .. '\1', name .. '\2', name .. '\3', name .. '\4')
end

local function drop_text(digest)
  drop('t', digest)
  drop('s', sub(digest, 1, REF))
end

local function has_text(digest)
  return run('HEXISTS', key_of('t', digest), digest) == 1
end

local function has_signature(ref)
  return run('HEXISTS', key_of('s', ref), ref) == 1
end

-- Linear hashing: adds one hash, and moves into it what belongs there from the only hash that has such names.
local function grow(kind)
  local new = numbers[kind]
  numbers[kind] = new + 1
  if new == powers[kind] then
    powers[kind] = 2 * new
  end
  run('HSET', prefix .. 'g', kind, new + 1)
  local old_key, new_key = prefix .. kind .. new - powers[kind] / 2, prefix .. kind .. new
  local items = run('HGETALL', old_key)
  local names, moved = {}, {}
  for place = 1, #items, 2 do
    local name = items[place]
    if number_of(kind, name) == new then
      names[#names + 1] = name
      moved[#moved + 1], moved[#moved + 2] = name, items[place + 1]
    end
    -- Lua passes at most 8,000 arguments.
    if #names == 1000 or (place + 1 == #items and #names > 0) then
      run('HSET', new_key, unpack(moved))
      run('HDEL', old_key, unpack(names))
      names, moved = {}, {}
    end
  end
end

local function drop_expired(kind, key)
  local items = run('HGETALL', key)
  for place = 1, #items, 2 do
    local name, value = items[place], items[place + 1]
    if kind == 't' and #name == 16 and is_forgotten(number_in(value, 2, 7), now) then
      drop_text(name)
    elseif kind == 'c' and is_forgotten(number_in(value, 2, 7), now) or kind == 'b' and not has_signature(value)
      or kind == 'm' and not has_text(value) then
      run('HDEL', key, name)
    end
  end
end

local function make_room(kind, key)
  local length = run('HLEN', key)
  if length > FULL and length < HOSTILE then
    if lifetime > 0 then
      drop_expired(kind, key)
    end
    if run('HLEN', key) > FULL then
      grow(kind)
    end
  end
end

local function put(kind, name, value)
  local key = key_of(kind, name)
  if run('HSTRLEN', key, name) == PIECE then
    drop(kind, name)
  end
  if #value < PIECE or #value >= MOST_PIECES * PIECE then
    run('HSET', key, name, value)
  else
    local items = {name, sub(value, 1, PIECE)}
    for number = 1, #value / PIECE do
      items[#items + 1] = name .. char(number)
      items[#items + 1] = sub(value, number * PIECE + 1, (number + 1) * PIECE)
    end
    run('HSET', key, unpack(items))
  end
  make_room(kind, key)
end

local places = {}
local function place_of(crawl)
  if not places[crawl] then
    local place = tonumber(run('HGET', KEYS[1], crawl) or nil)
    if not place then
      place = run('RPUSH', prefix .. 'n', crawl) - 1
      run('HSET', KEYS[1], crawl, place)
    end
    places[crawl] = char(math.floor(place / 65536), math.floor(place / 256) % 256, place % 256)
  end
  return places[crawl]
end

-- The first capture for the answer; nil if it has expired or is this page in an earlier attempt, unless `is_plain`.
local function answer_of(digest, first, url_key, url, ms, is_plain)
  local first_url = sub(first, 11)
  if not is_plain then
    local is_own = sub(first, 1, 1) == 'p' and first_url == url
    if is_own or is_forgotten(number_in(first, 2, 7), ms) then
      return nil
    end
  end
  local had = first_url == url
  if not had then
    local note = run('HGET', key_of('c', url_key), url_key .. digest)
    had = note and not is_forgotten(number_in(note, 2, 7), ms)
  end
  return {first, run('LINDEX', prefix .. 'n', number_in(first, 8, 10)), had and 1 or 0}
end
