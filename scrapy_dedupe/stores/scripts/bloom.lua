-- Test, add or forget fingerprints in a shared URL filter. One call processes a batch atomically; the formats are
-- described in urls/shared.py and urls/shared_layers.py. A short call spends much of its time before the filter is
-- read, so this script defines few tables and functions.
--
-- KEYS[1]: the key of the head, "<base>:meta". The other keys carry the same hash tag and are derived from it,
-- because only the script knows how many layers and shards there are.
-- ARGV: 1 if this call may be a repetition; "add", "has" or "forget"; the token of the calling process; the generation of
-- the filter that it uses; a name for this call; the words of each fingerprint, 64 bytes.
-- Returns a digit for each fingerprint (add: 1 if it is new, 2 if it is new because it was forgotten; has: 1 if it was
-- found; forget returns nothing), or, if the filter has another generation, a table with it; then nothing was done.

local ITEM = 64
local SLOTS = 4
local MOST_MOVES = 400
local ZEROS = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
local LAYER = 'tags (%d+) (%d+) (%d+) (%d+)'

local run, find, sub, byte, words_of = redis.call, string.find, string.sub, string.byte, struct.unpack
local meta, operation, token, call, data = KEYS[1], ARGV[2], ARGV[3], ARGV[5], ARGV[6]
local base = sub(meta, 1, -5)

local head = run('HMGET', meta, 'born', 'used', 'count', 'forgotten')
if head[1] ~= ARGV[4] then
    return { head[1] or '' }
end
if ARGV[1] == '1' and operation ~= 'has' then
    -- A client that lost the answer repeats the call. Its fingerprints would now be found, and their pages lost.
    local last = run('HGET', meta, 'call:' .. token)
    if last and sub(last, 1, #call + 1) == call .. ' ' then
        return sub(last, #call + 2)
    end
end

local forgotten = head[4] and tonumber(head[4]) or 0

if operation == 'forget' then
    for at = 1, #data, ITEM do
        forgotten = forgotten + run('SADD', base .. 'forgotten', sub(data, at, at + 15))
    end
    run('HSET', meta, 'forgotten', forgotten, 'call:' .. token, call .. ' ')
    return ''
end

local is_add = operation == 'add'

-- A layer has buckets of 4 tags. A bucket is read and searched as a string.

local function position(bucket, tag, width)
    local at = find(bucket, tag, 1, true)
    while at and (at - 1) % width ~= 0 do
        at = find(bucket, tag, at + 1, true)
    end
    return at
end

-- The other bucket of a tag; applied twice, this returns the first bucket. The numbers stay below 2^53, so % is exact.
local function other_bucket(tag, bucket, buckets)
    local a, b, c = byte(tag, 1, 3)
    return ((a * 65536 + b * 256 + (c or 0)) * 163841641 - bucket) % buckets
end

-- Put a tag into a full bucket: its tags move to their other buckets until there is room. Nothing is written before room
-- is found.
local function make_room(layer, key, tag, number, bucket, seed)
    local width, size, empty = layer.width, layer.size, layer.empty
    local changed, starts, tags = {}, {}, {}
    for step = 1, MOST_MOVES do
        seed = seed * 16807 % 2147483647
        local from = seed % SLOTS * width
        local moved = sub(bucket, from + 1, from + width)
        changed[number] = sub(bucket, 1, from) .. tag .. sub(bucket, from + width + 1)
        starts[step], tags[step] = number * size + from, tag
        tag, number = moved, other_bucket(moved, number, layer.buckets)
        bucket = changed[number] or run('GETRANGE', key, number * size, number * size + size - 1)
        local free = position(bucket, empty, width)
        if free then
            for done = 1, step do
                run('SETRANGE', key, starts[done], tags[done])
            end
            run('SETRANGE', key, number * size + free - 1, tag)
            return true
        end
    end
    return false
end

-- Whether the layer has the fingerprint at `at` of the data. `is_put` adds it; nil if there is no room.
local function ask(layer, at, is_put)
    local width, size, empty, buckets = layer.width, layer.size, layer.empty, layer.buckets
    local shard, word = words_of('>I4I4', data, at)
    local key = layer.prefix .. shard % layer.shards
    local tag = sub(data, at + 8, at + 7 + width)
    if tag == empty then
        tag = sub(ZEROS, 2, width) .. '\1'
    end
    local one = word % buckets
    local first = run('GETRANGE', key, one * size, one * size + size - 1)
    if first == '' then
        -- The shard is new: allocate its full size.
        if is_put then
            run('SETRANGE', key, buckets * size - 1, '\0')
            run('SETRANGE', key, one * size, tag)
        end
        return false
    end
    if find(first, tag, 1, true) and position(first, tag, width) then
        return true
    end
    local two = other_bucket(tag, one, buckets)
    local second = run('GETRANGE', key, two * size, two * size + size - 1)
    if find(second, tag, 1, true) and position(second, tag, width) then
        return true
    end
    if is_put then
        local free = position(first, empty, width)
        if free then
            run('SETRANGE', key, one * size + free - 1, tag)
            return false
        end
        free = position(second, empty, width)
        if free then
            run('SETRANGE', key, two * size + free - 1, tag)
        elseif not make_room(layer, key, tag, one, first, 1 + word % 2147483646) then
            return nil
        end
    end
    return false
end

local newest = 0

local function new_layer(capacity, width, buckets, shards)
    local prefix = base .. 'bits:' .. newest .. ':'
    newest = newest + 1
    width = tonumber(width)
    return {
        capacity = tonumber(capacity), shards = tonumber(shards), prefix = prefix, width = width,
        buckets = tonumber(buckets), size = SLOTS * width, empty = sub(ZEROS, 1, width),
    }
end

local used = head[2]
local layer = new_layer(string.match(used, LAYER))
local older
local second = find(used, '\n', 1, true)
if second then
    older = {}
    for capacity, width, buckets, shards in string.gmatch(sub(used, second), LAYER) do
        older[newest] = layer
        layer = new_layer(capacity, width, buckets, shards)
    end
end

local answers, answered = {}, 0
local count = tonumber(head[3])
local changes = 0

for at = 1, #data, ITEM do
    local found, was_forgotten = false, false
    if forgotten > 0 then
        was_forgotten = run(is_add and 'SREM' or 'SISMEMBER', base .. 'forgotten', sub(data, at, at + 15)) == 1
    end
    if older then
        for number = newest - 1, 1, -1 do
            if ask(older[number], at, false) then
                found = true
                break
            end
        end
    end
    if not found then
        local is_full = count >= layer.capacity
        found = ask(layer, at, is_add and not is_full)
        if is_add and (found == nil or is_full and not found) then
            local plan = run('HGET', meta, 'plan')
            local line, rest = string.match(plan, '^(%C+)\n?(.*)$')
            local full = run('HGET', meta, 'full')
            used = used .. '\n' .. line
            run('HSET', meta, 'used', used, 'plan', rest, 'full', full == '' and count or full .. ' ' .. count)
            older = older or {}
            older[newest] = layer
            layer = new_layer(string.match(line, LAYER))
            count = 0
            found = ask(layer, at, true)
        end
        if is_add and not found then
            count = count + 1
            changes = changes + 1
        end
    end
    answered = answered + 1
    if is_add then
        if was_forgotten then
            forgotten = forgotten - 1
            changes = changes + 1
        end
        answers[answered] = was_forgotten and '2' or found and '0' or '1'
    else
        answers[answered] = found and not was_forgotten and '1' or '0'
    end
end

local digits = answered == 1 and answers[1] or table.concat(answers)
-- A repeated call that found nothing new gets the same answers, so these need not be stored.
if changes > 0 then
    if head[4] then
        run('HSET', meta, 'count', count, 'call:' .. token, call .. ' ' .. digits, 'forgotten', forgotten)
    else
        run('HSET', meta, 'count', count, 'call:' .. token, call .. ' ' .. digits)
    end
end
return digits
