/* SPDX-License-Identifier: Apache-2.0 */
/* Changes a file's header or its data, and puts the header's length right again: without that hardly any input would come
 * further than to the first check. */
#include <string.h>

#include "tests/fuzz/fuzz.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned int seed);

static size_t length_of(const uint8_t *data)
{
    uint64_t length = 0;
    for (int k = 7; k >= 0; k--)
        length = length << 8 | data[k];
    return length > SIZE_MAX / 2 ? SIZE_MAX / 2 : (size_t)length;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned int seed)
{
    static uint8_t header[1 << 16];
    size_t length = size >= 8 ? length_of(data) : 0;
    if (seed % 16 == 0 || size < 8 || length > size - 8 || length + 64 > sizeof header || most < 9)
        return LLVMFuzzerMutate(data, size, most);
    size_t tail = size - 8 - length;
    if (seed % 4 == 1) {
        tail = LLVMFuzzerMutate(data + 8 + length, tail, most - 8 - length);
        return 8 + length + tail;
    }
    memcpy(header, data + 8, length);
    size_t room = most - 8 - tail < sizeof header ? most - 8 - tail : sizeof header;
    size_t changed = LLVMFuzzerMutate(header, length, room);
    memmove(data + 8 + changed, data + 8 + length, tail);
    memcpy(data + 8, header, changed);
    for (int k = 0; k < 8; k++)
        data[k] = (uint8_t)((uint64_t)changed >> 8 * k);
    return 8 + changed + tail;
}
