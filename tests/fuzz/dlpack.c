/* SPDX-License-Identifier: Apache-2.0 */
/* What another library hands over: its structure's fields are the input's bytes, its data a buffer of this program. Where they
 * lead out of it nothing is read, as nobody can tell. */
#include <string.h>

#include "tensor/copies.h"
#include "tensor/dlpack.h"
#include "tensor/tensor.h"
#include "tests/fuzz/fuzz.h"

enum { BUFFER = 4096, MOST = 12 };

typedef struct fields {
    uint8_t major, device, code, bits, lanes, flags, strided, offset;
    int32_t ndim;
    int32_t sizes[MOST], strides[MOST];
} fields;

typedef struct managed {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(void *self);
    uint64_t flags;
    void *data;
    int32_t device_type, device, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset;
} managed;

static int deleted;
static void forget(void *self)
{
    (void)self;
    deleted++;
}

/* Whether each element lies in the buffer. */
static bool is_inside(const managed *m)
{
    int64_t low = 0, high = 0, step = 1, element = m->bits / 8;
    if (m->ndim < 0 || m->ndim > TREK_MAX_DIMS || element < 1)
        return false;
    for (int d = m->ndim - 1; d >= 0; d--) {
        if (m->shape[d] < 0 || m->shape[d] > BUFFER || step > BUFFER)
            return false;
        int64_t stride = m->strides ? m->strides[d] : step, reach = m->shape[d] > 0 ? (m->shape[d] - 1) * stride : 0;
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
        step *= m->shape[d] > 0 ? m->shape[d] : 1;
    }
    return low * element + (int64_t)m->offset >= 0 && (high + 1) * element + (int64_t)m->offset <= BUFFER;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static _Alignas(64) unsigned char buffer[BUFFER];
    fields f = { 0 };
    int64_t sizes[MOST], strides[MOST];
    memcpy(&f, data, size < sizeof f ? size : sizeof f);
    for (int d = 0; d < MOST; d++) {
        sizes[d] = f.sizes[d];
        strides[d] = f.strides[d];
    }
    managed m = { .major = f.major, .deleter = forget, .flags = f.flags, .data = buffer, .device_type = f.device, .ndim = f.ndim,
                  .code = f.code, .bits = f.bits, .lanes = f.lanes, .shape = sizes, .strides = f.strided ? strides : NULL,
                  .offset = (uint64_t)f.offset * 8 };
    bool inside = is_inside(&m);
    m.flags &= inside ? 3 : 2; /* what is read-only is copied */
    deleted = 0;
    trek_tensor *tensor = trek_tensor_from_dlpack(&m);
    fuzz_settle(tensor != NULL);
    fuzz_expect(tensor || deleted == 1, "what was refused is given back, once");
    trek_tensor *clone = tensor && inside ? trek_tensor_clone(tensor) : NULL;
    fuzz_expect(!clone || trek_tensor_numel(clone) == trek_tensor_numel(tensor), "a copy of all of it");
    trek_error_clear();
    trek_tensor_release(clone);
    trek_tensor_release(tensor);
    fuzz_expect(deleted == 1, "what was taken is given back, once");
    return 0;
}
