/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's cuTensorMapEncodeTiled, as far as it is known from outside: what it refuses; the form it writes is the PTX
 * machine's (tests/ptx/ptx.h), which is what reads it. */
#include <cstring>

#include "fake_internal.h"
#include "ptx/ptx.h"

namespace fake {

enum { ENCODED = 0, INVALID_VALUE = 1, HALF = 6, BFLOAT16 = 9 };

int encode_tiled(void *to, int type, uint32_t rank, void *data, const uint64_t *sizes, const uint64_t *strides,
                        const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill)
{
    ptx::TensorMap map = {};
    cudaError_t error;
    if (fails_now("cuTensorMapEncodeTiled", &error))
        return INVALID_VALUE;
    if (!to || (uintptr_t)to % 64 || rank < 1 || rank > 5 || !data || (uintptr_t)data % 16 || interleave || fill ||
        promotion < 0 ||
        promotion > 3 || swizzle < 0 || swizzle > 3 || (type != HALF && type != BFLOAT16))
        return INVALID_VALUE;
    map.magic = ptx::TensorMap::MAGIC;
    map.address = (uint64_t)(uintptr_t)data;
    map.rank = (uint8_t)rank;
    map.element = 2;
    map.swizzle = (uint8_t)swizzle;
    for (uint32_t d = 0; d < rank; d++) {
        if (!sizes[d] || sizes[d] > 1ull << 32 || !box[d] || box[d] > 256 || steps[d] != 1)
            return INVALID_VALUE;
        if (d && (strides[d - 1] % 16 || strides[d - 1] >= 1ull << 40 || !strides[d - 1]))
            return INVALID_VALUE;
        if (d > 1 && (strides[d - 1] < strides[d - 2] || strides[d - 1] % strides[d - 2])) /* the letter of cuda.h */
            return INVALID_VALUE;
        map.last[d] = (uint32_t)(sizes[d] - 1);
        map.box[d] = (uint16_t)box[d];
        if (d)
            map.strides[d - 1] = strides[d - 1];
    }
    const uint32_t row = box[0] * map.element;
    if (row % 16 || (swizzle && row > 16u << swizzle))
        return INVALID_VALUE;
    memset(to, 0, 128);
    memcpy(to, &map, sizeof map);
    return ENCODED;
}

} // namespace fake
