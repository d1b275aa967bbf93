-- A growing Bloom filter. One call answers a batch, atomically; the formats are described in urls/shared.py.
--
-- KEYS[1] is the key of the head, "<base>:meta". The other keys carry the same hash tag and are derived from it,
-- because only the script knows how many layers and shards there are.
-- ARGV[1] is the operation, ARGV[2] the token of the asking process, ARGV[3] its lease in milliseconds (0: leave
-- the lease as it is). What follows depends on the operation.

local meta = KEYS[1]
local base = string.sub(meta, 1, -6)
local attached = base .. ':attached'
local calls = base .. ':calls'
local operation, token, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local SHARD_BITS = 134217728 -- 2^27 bits, 16 MiB: far below the 512 MiB of a string, and cheap to allocate

local function whole(number)
    return string.format('%.0f', number)
end

local function now_ms()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function renew_lease()
    if lease_ms > 0 then
        redis.call('ZADD', attached, whole(now_ms() + lease_ms), token)
    end
end

-- A process that did not leave by itself took what it had queued with it: `cut` says so.
local function bury(gone)
    if redis.call('ZREM', attached, gone) == 1 and redis.call('EXISTS', meta) == 1 then
        redis.call('HSET', meta, 'cut', gone)
    end
    redis.call('HDEL', calls, gone)
end

local function forget_expired()
    for _, gone in ipairs(redis.call('ZRANGEBYSCORE', attached, '-inf', whole(now_ms()))) do
        bury(gone)
    end
end

-- Capacity, hashes, bits of a slice and shards of layer number `number` (from 0).
local function plan_layer(capacity, error_rate, number)
    local holds = capacity * 2 ^ number
    local share = error_rate * 0.7 * 0.3 ^ number
    local exact = -math.log(share) / math.log(2)
    local best
    for _, hashes in ipairs({ math.max(1, math.floor(exact)), math.max(1, math.ceil(exact)) }) do
        local bits_each = -1 / math.log(1 - share ^ (1 / hashes))
        local shards = math.max(1, math.ceil(holds * bits_each * hashes / SHARD_BITS))
        local most = math.ceil(holds / shards)
        if shards > 1 then
            -- Fingerprints fall into shards at random: room for four standard deviations.
            most = most + math.ceil(4 * math.sqrt(most))
        end
        -- A slice of m bits is set by n draws with 1 - (1 - 1/m)^n, a little more often than 1 - e^(-n/m).
        local slice_bits = math.ceil(most * bits_each + 1)
        if not best or hashes * slice_bits * shards < best.hashes * best.slice_bits * best.shards then
            best = { capacity = holds, hashes = hashes, slice_bits = slice_bits, shards = shards, count = 0 }
        end
    end
    return best
end

local function store_layer(number, layer)
    redis.call('HSET', meta, 'layers', number + 1, 'count:' .. number, 0, 'layer:' .. number,
        table.concat({ whole(layer.capacity), layer.hashes, whole(layer.slice_bits), layer.shards }, ' '))
end

local function read_head()
    local flat = redis.call('HGETALL', meta)
    if #flat == 0 then
        return nil
    end
    local head = {}
    for i = 1, #flat, 2 do
        head[flat[i]] = flat[i + 1]
    end
    return head, flat
end

local function read_layers(head)
    local layers = {}
    for number = 0, tonumber(head.layers) - 1 do
        local capacity, hashes, slice_bits, shards =
            string.match(head['layer:' .. number], '^(%d+) (%d+) (%d+) (%d+)$')
        layers[number + 1] = {
            prefix = base .. ':bits:' .. number .. ':',
            capacity = tonumber(capacity), hashes = tonumber(hashes), slice_bits = tonumber(slice_bits),
            shards = tonumber(shards), count = tonumber(head['count:' .. number]),
        }
    end
    return layers
end

-- words[1] chooses the shard, words[1 + i] the bit of slice i. All are below 2^48, so % is exact.
local function holds(layer, words)
    local key = layer.prefix .. words[1] % layer.shards
    local width = layer.slice_bits
    for i = 1, layer.hashes do
        if redis.call('GETBIT', key, whole((i - 1) * width + words[i + 1] % width)) == 0 then
            return false
        end
    end
    return true
end

local function put(layer, words)
    local key = layer.prefix .. words[1] % layer.shards
    local width = layer.slice_bits
    local arguments = {}
    for i = 1, layer.hashes do
        local at = 4 * (i - 1)
        arguments[at + 1] = 'SET'
        arguments[at + 2] = 'u1'
        arguments[at + 3] = whole((i - 1) * width + words[i + 1] % width)
        arguments[at + 4] = '1'
    end
    for _, bit in ipairs(redis.call('BITFIELD', key, unpack(arguments))) do
        if bit == 0 then
            return true
        end
    end
    return false
end

local function count_all(layers)
    local count = 0
    for _, layer in ipairs(layers) do
        count = count + layer.count
    end
    return count
end

local function delete_all(head)
    if head then
        for _, layer in ipairs(read_layers(head)) do
            for shard = 0, layer.shards - 1 do
                redis.call('UNLINK', layer.prefix .. shard)
            end
        end
    end
    redis.call('DEL', meta, attached, calls)
end

if operation == 'attach' then
    -- ARGV: version, hash, fingerprinter, capacity, error rate, name for a new generation, the generation that
    -- the asking process has used until now, the one that may be kept if nobody is there ('*': any), tokens of
    -- processes that are gone. Returns the head, the fingerprints, the number of other processes, the
    -- fingerprints that were discarded, and 1 if the filter that was found was cut.
    local version, hash, fingerprinter, capacity, error_rate, born, held, keep = unpack(ARGV, 4, 11)
    for i = 12, #ARGV do
        bury(ARGV[i])
    end
    -- One that returns after its lease had run out is not gone.
    redis.call('ZREM', attached, token)
    forget_expired()
    local others = redis.call('ZCARD', attached)
    local discarded, cut = 0, 0
    local found = read_head()
    if found then
        cut = found.cut and 1 or 0
        -- redis-py may send the call twice; the second one finds what the first one has begun.
        local is_in_use = others > 0 or found.born == held or found.born == born
        if not is_in_use and keep ~= '*' and (keep ~= found.born or found.cut) then
            discarded = count_all(read_layers(found))
            delete_all(found)
        elseif keep == '*' then
            redis.call('HDEL', meta, 'cut') -- the queue lies in Redis too, and is whole
        end
    end
    if redis.call('EXISTS', meta) == 0 then
        redis.call('HSET', meta, 'version', version, 'hash', hash, 'fingerprinter', fingerprinter,
            'capacity', capacity, 'error_rate', error_rate, 'born', born)
        store_layer(0, plan_layer(tonumber(capacity), tonumber(error_rate), 0))
    end
    local head, flat = read_head()
    if head.version == version and head.hash == hash and head.fingerprinter == fingerprinter
        and tonumber(head.error_rate) == tonumber(error_rate) then
        renew_lease()
    end
    return { flat, count_all(read_layers(head)), others, discarded, cut }
end

if operation == 'renew' then
    if redis.call('EXISTS', meta) == 1 then
        renew_lease()
    end
    return 1
end

if operation == 'detach' then
    -- ARGV: 1 to delete the filter if nobody else is attached, 1 to leave as one that was cut, tokens of
    -- processes that are gone. Returns 1 if it was deleted.
    for i = 6, #ARGV do
        bury(ARGV[i])
    end
    if ARGV[5] == '1' then
        bury(token)
    end
    redis.call('ZREM', attached, token)
    redis.call('HDEL', calls, token)
    forget_expired()
    if ARGV[4] ~= '1' or redis.call('ZCARD', attached) > 0 then
        return 0
    end
    delete_all(read_head())
    return 1
end

-- 'add' or 'has'. ARGV: name of this call, words for each fingerprint, the words (6 bytes each, big-endian).
-- Returns the generation, one digit for each fingerprint (1: add found it new, or has found it), and 0; or, when a
-- layer needs more words than were sent, the digits of those that were answered and the words that are needed.
local call, per_item, data = ARGV[4], tonumber(ARGV[5]), ARGV[6]
local head = read_head()
if not head then
    return { '', '', 0 }
end
local is_add = operation == 'add'
if is_add then
    renew_lease()
    -- A client that lost the answer asks again. Its fingerprints would now be found, and their pages lost.
    local last = redis.call('HGET', calls, token)
    if last then
        local name, needed, digits = string.match(last, '^(%S+) (%d+) (%d*)$')
        if name == call then
            return { head.born, digits, tonumber(needed) }
        end
    end
end

local layers = read_layers(head)
local newest = #layers
local answers = {}
local needed = 0
local size = per_item * 6
local format = '>' .. string.rep('I6', per_item)
local changed = {}

if per_item < layers[newest].hashes + 1 then
    needed = layers[newest].hashes + 1
else
    for start = 1, #data, size do
        local words = { struct.unpack(format, data, start) }
        local found = false
        for number = newest - 1, 1, -1 do
            if holds(layers[number], words) then
                found = true
                break
            end
        end
        if not is_add then
            found = found or holds(layers[newest], words)
            answers[#answers + 1] = found and '1' or '0'
        elseif found then
            answers[#answers + 1] = '0'
        else
            local layer = layers[newest]
            if layer.count >= layer.capacity then
                if holds(layer, words) then
                    layer = nil
                else
                    layer = plan_layer(tonumber(head.capacity), tonumber(head.error_rate), newest)
                    if per_item < layer.hashes + 1 then
                        needed = layer.hashes + 1
                        break
                    end
                    layer.prefix = base .. ':bits:' .. newest .. ':'
                    store_layer(newest, layer)
                    newest = newest + 1
                    layers[newest] = layer
                end
            end
            if layer and put(layer, words) then
                layer.count = layer.count + 1
                changed[newest] = layer.count
                answers[#answers + 1] = '1'
            else
                answers[#answers + 1] = '0'
            end
        end
    end
end

local digits = table.concat(answers)
if is_add then
    for number, count in pairs(changed) do
        redis.call('HSET', meta, 'count:' .. (number - 1), whole(count))
    end
    redis.call('HSET', calls, token, call .. ' ' .. needed .. ' ' .. digits)
end
return { head.born, digits, needed }
