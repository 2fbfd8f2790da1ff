/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack 1.x in both directions. The structures are those of the specification (dmlc.github.io/dlpack), defined here
 * so that no header is needed. */
#include "tensor/dlpack.h"

#include "tensor/pages.h"
#include "tensor/tensor_internal.h"

typedef struct dl_tensor {
    void *data;
    struct {
        int32_t type, index;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    struct {
        uint32_t major, minor;
    } version;
    void *manager;
    void (*deleter)(struct dl_managed *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed;

/* In flags: the data must not be changed. */
#define DL_READ_ONLY UINT64_C(1)
enum { DL_CPU = 1, DL_CUDA = 2, DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };

static const struct {
    uint8_t code, bits;
} codes[TREK_DTYPE_COUNT] = {
    [TREK_F32] = { DL_FLOAT, 32 }, [TREK_F64] = { DL_FLOAT, 64 }, [TREK_BF16] = { DL_BFLOAT, 16 }, [TREK_F16] = { DL_FLOAT, 16 },
    [TREK_I64] = { DL_INT, 64 },   [TREK_I32] = { DL_INT, 32 },   [TREK_U8] = { DL_UINT, 8 },      [TREK_BOOL] = { DL_BOOL, 8 },
};

typedef struct exported {
    dl_managed managed;
    int64_t shape[TREK_MAX_DIMS], strides[TREK_MAX_DIMS];
} exported;

static void delete_export(dl_managed *managed)
{
    trek_tensor_release(managed->manager);
    trek_free(managed);
}

void *trek_tensor_to_dlpack(trek_tensor *tensor)
{
    if (!tensor)
        return trek_fail_missing("tensor_to_dlpack", "tensor"), NULL;
    if (trek_tensor_is_kept(tensor))
        return trek_fail_null(TREK_ERR_STATE,
                              "tensor_to_dlpack: tensor: it is divided over ranks (TREK_SHARD_PARAMETERS), so its "
                              "memory comes and goes; give a copy (trek_tensor_clone)");
    exported *e = trek_calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->managed.version.major = 1;
    e->managed.manager = trek_tensor_retain(tensor);
    e->managed.deleter = delete_export;
    dl_tensor *t = &e->managed.tensor;
    t->data = tensor->data;
    t->device.type = tensor->device.type == TREK_CPU ? DL_CPU : DL_CUDA;
    t->device.index = tensor->device.type == TREK_CPU ? 0 : tensor->device.index;
    t->ndim = tensor->ndim;
    t->dtype.code = codes[tensor->dtype].code;
    t->dtype.bits = codes[tensor->dtype].bits;
    t->dtype.lanes = 1;
    for (int d = 0; d < tensor->ndim; d++) {
        e->shape[d] = tensor->sizes[d];
        e->strides[d] = tensor->strides[d];
    }
    t->shape = e->shape;
    t->strides = e->strides;
    return e;
}

static void release_import(void *data, void *arg)
{
    (void)data;
    dl_managed *managed = arg;
    if (managed->deleter)
        managed->deleter(managed);
}

static int find_dtype(const dl_tensor *t)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (t->dtype.lanes == 1 && codes[dtype].code == t->dtype.code && codes[dtype].bits == t->dtype.bits)
            return dtype;
    return -1;
}

static trek_status check_import(const dl_tensor *t, int dtype)
{
    if (t->device.type != DL_CPU)
        return trek_fail(TREK_ERR_DEVICE, "tensor_from_dlpack: device type: %d; must be host memory", (int)t->device.type);
    if (dtype < 0)
        return trek_fail(TREK_ERR_DTYPE, "tensor_from_dlpack: dtype: code %d with %d bits is unknown", t->dtype.code,
                         t->dtype.bits);
    if (t->ndim < 0 || t->ndim > TREK_MAX_DIMS || (t->ndim > 0 && !t->shape))
        return trek_fail(TREK_ERR_SHAPE, "tensor_from_dlpack: ndim: %d; must be 0 to 8", (int)t->ndim);
    return trek_check_creation("tensor_from_dlpack", trek_shape_make(t->shape, t->ndim), (trek_dtype)dtype);
}

trek_tensor *trek_tensor_from_dlpack(void *memory)
{
    dl_managed *managed = memory;
    if (!managed)
        return trek_fail_missing("tensor_from_dlpack", "structure"), NULL;
    if (managed->version.major != 1) {
        trek_fail(TREK_ERR_UNSUPPORTED, "tensor_from_dlpack: version: %u.%u; must be 1.x", managed->version.major,
                  managed->version.minor);
        release_import(NULL, managed);
        return NULL;
    }
    const dl_tensor *t = &managed->tensor;
    int dtype = find_dtype(t);
    trek_tensor *whole = NULL;
    if (check_import(t, dtype) == TREK_OK) {
        char *data = t->data ? (char *)t->data + t->byte_offset : NULL;
        whole = trek_tensor_wrap(data, trek_shape_make(t->shape, t->ndim), (trek_dtype)dtype, release_import, managed);
    }
    if (!whole) {
        release_import(NULL, managed);
        return NULL;
    }
    for (int d = 0; t->strides && d < t->ndim; d++)
        whole->strides[d] = t->strides[d];
    trek_tensor_set_contiguous(whole);
    if (!(managed->flags & DL_READ_ONLY))
        return whole;
    trek_tensor *own = trek_tensor_clone(whole); /* any tensor may be written to */
    trek_tensor_release(whole);
    return own;
}
