/* SPDX-License-Identifier: Apache-2.0 */
/* Makes tensor maps by the driver's cuTensorMapEncodeTiled. */
#include "tensor/cuda/tensor_map.h"

#include "tensor/cuda/driver.h"
#include "tensor/cuda/paths.h"

#include <pthread.h>

/* Constants of cuda.h, which is as long as the whole header of the runtime. */
enum { TYPE_F16 = 6, TYPE_BF16 = 9, INTERLEAVE_NONE = 0, SWIZZLE_128B = 3, PROMOTION_L2_256B = 3, FILL_ZEROS = 0 };

typedef int encode_tiled(void *map, int type, uint32_t rank, void *data, const uint64_t *sizes, const uint64_t *strides,
                         const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill);
static encode_tiled *encode;
static pthread_once_t encode_once = PTHREAD_ONCE_INIT;

static void find_encode(void) { trek_cuda_driver_function("cuTensorMapEncodeTiled", &encode); }

enum { BATCH, HEAD, ROW, COLUMN };

/* Orders the outer dimensions by their strides, the smallest first; dimensions of one element, whose stride has no
 * meaning, come last. */
static void sort_dimensions(const int64_t sizes[4], const int64_t strides[4], int order[3])
{
    static const int at_first[3] = { ROW, HEAD, BATCH };
    for (int n = 0; n < 3; n++) {
        const int dim = at_first[n];
        int k = n;
        for (; k > 0 && sizes[dim] > 1 && (sizes[order[k - 1]] == 1 || strides[dim] < strides[order[k - 1]]); k--)
            order[k] = order[k - 1];
        order[k] = dim;
    }
}

bool trek_tensor_map_rows(trek_tensor_map *map, void *data, trek_dtype dtype, const int64_t sizes[4], const int64_t strides[4],
                          int rows)
{
    uint64_t inward[4] = { (uint64_t)sizes[COLUMN] }, steps[3]; /* from the innermost dimension on; strides in bytes */
    uint32_t box[4] = { 64, 1, 1, 1 };
    const uint32_t each[4] = { 1, 1, 1, 1 };
    int order[3];
    sort_dimensions(sizes, strides, order);
    if (strides[COLUMN] != 1 || sizes[COLUMN] < 1 || sizes[COLUMN] > INT64_C(0x7fffffff))
        return trek_cuda_refuse_it("tensor maps of rows that are not dense");
    for (int n = 0; n < 3; n++) {
        const int64_t size = sizes[order[n]], stride = strides[order[n]];
        if (size < 1 || size > INT64_C(0x7fffffff) ||
            (size > 1 && (stride <= 0 || stride % 8 != 0 || stride >= INT64_C(1) << 39)))
            return trek_cuda_refuse_it("strides that tensor maps do not have: they are positive multiples of 16 bytes");
        inward[n + 1] = (uint64_t)size;
        const uint64_t before = n > 0 ? steps[n - 1] * inward[n] : (inward[0] * 2 + 15) / 16 * 16;
        steps[n] = size > 1 ? (uint64_t)stride * 2 : before; /* one element has no stride */
        if (order[n] == ROW)
            map->row_at = n, box[n + 1] = (uint32_t)rows;
        else if (order[n] == HEAD)
            map->head_at = n;
    }
    pthread_once(&encode_once, find_encode);
    if (!encode)
        return trek_cuda_refuse_it("the driver has no tensor maps (cuTensorMapEncodeTiled): it is older than CUDA 12");
    return encode(map->words, dtype == TREK_BF16 ? TYPE_BF16 : TYPE_F16, 4, data, inward, steps, box, each, INTERLEAVE_NONE,
                  SWIZZLE_128B, PROMOTION_L2_256B, FILL_ZEROS) == 0 ||
           trek_cuda_refuse_it("the driver does not encode a tensor map of these sizes and strides");
}
