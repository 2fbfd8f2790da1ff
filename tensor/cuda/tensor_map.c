/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps by the driver's cuTensorMapEncodeTiled, which the runtime hands out: libcuda is not linked. */
#include "tensor/cuda/tensor_map.h"

#include <pthread.h>
#include <string.h>

/* cuda.h's numbers: what is parsed for them would be as much again as all of the runtime's header */
enum { TYPE_F16 = 6, TYPE_BF16 = 9, INTERLEAVE_NONE = 0, SWIZZLE_128B = 3, PROMOTION_L2_256B = 3, FILL_ZEROS = 0 };

typedef int encode_tiled(void *map, int type, uint32_t rank, void *data, const uint64_t *sizes, const uint64_t *strides,
                         const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill);
static encode_tiled *encode;
static pthread_once_t encode_once = PTHREAD_ONCE_INIT;

static void find_encode(void)
{
    void *address = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &found);
#elif CUDART_VERSION >= 12000
    cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &address, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaErrorNotSupported;
#endif
    if (error != cudaSuccess)
        (void)cudaGetLastError(); /* it is nobody's */
    else if (found == cudaDriverEntryPointSuccess)
        memcpy(&encode, &address, sizeof encode);
}

bool trek_tensor_map_rows(trek_tensor_map *map, void *data, trek_dtype dtype, const int64_t sizes[4], const int64_t strides[4],
                          int rows)
{
    uint64_t inward[4], steps[3]; /* from the innermost dimension on; strides in bytes */
    const uint32_t box[4] = { 64, (uint32_t)rows, 1, 1 }, each[4] = { 1, 1, 1, 1 };
    if (strides[3] != 1)
        return false;
    for (int d = 0; d < 4; d++) {
        const int64_t size = sizes[3 - d], stride = strides[3 - d];
        if (size < 1 || size > INT64_C(0x7fffffff))
            return false;
        inward[d] = (uint64_t)size;
        if (d == 0)
            continue;
        if (size > 1 && (stride <= 0 || stride % 8 != 0 || stride >= INT64_C(1) << 39))
            return false;
        steps[d - 1] = size > 1 ? (uint64_t)stride * 2 : (inward[0] * 2 + 15) / 16 * 16; /* of one there is none */
    }
    pthread_once(&encode_once, find_encode);
    return encode && encode(map, dtype == TREK_BF16 ? TYPE_BF16 : TYPE_F16, 4, data, inward, steps, box, each, INTERLEAVE_NONE,
                            SWIZZLE_128B, PROMOTION_L2_256B, FILL_ZEROS) == 0;
}
