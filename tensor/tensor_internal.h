/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_TENSOR_TENSOR_INTERNAL_H
#define TREK_TENSOR_TENSOR_INTERNAL_H

#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/devices.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/shapes.h"
#include "tensor/tensor.h"

/* Kernels written in C++ read headers of tensors; only C takes and drops references. */
#ifdef __cplusplus
typedef int trek_refs;
#else
#include <string.h>

#include "tensor/memory_internal.h"
#include "tensor/refcount_internal.h"
#include "tensor/status_internal.h"
typedef atomic_int trek_refs;
#endif

struct trek_backend;
typedef struct trek_storage trek_storage;

struct trek_tensor {
    trek_refs refs;
    uint8_t dtype;               /* trek_dtype */
    uint8_t ndim;
    bool contiguous;             /* row-major without gaps (dimensions of size 1 are ignored); maintained by code that sets
                                  * strides */
    bool embedded;               /* this header belongs to its storage */
    trek_device device;
    char *data;                  /* first element */
    trek_storage *storage;
    int64_t numel;
    int64_t spare;               /* sizes and strides are copied 16 bytes at a time, which is slow across a cache line */
    int64_t sizes[TREK_MAX_DIMS];
    int64_t strides[TREK_MAX_DIMS]; /* in elements; may be 0 (broadcast) or negative */
};

#ifndef __cplusplus

extern const uint8_t trek_item_size[TREK_DTYPE_COUNT]; /* in bytes */

/* Bytes that tensors share. Small data are in `small`, and the header of the tensor for which it was made is in
 * `own`: a result of an op is one block. A part of an arena is a storage of its own, so that it has its own version. */
struct trek_storage {
    trek_refs refs;
    uint32_t version;            /* counts writes; the tape stores it with what it saves */
    uint32_t run; /* of the watcher of the thread that made it (trek_rank_context.watch); not used on the CPU */
    bool plain;                  /* data is `small`; only the block must be freed */
    char *data;
    size_t bytes;
    trek_device device;
    trek_storage *parent;        /* contains the data; NULL: none */
    void (*release)(void *data, void *arg); /* for wrapped memory */
    void *handle;                /* release's argument, or the backend's handle for its memory */
    _Alignas(64) char small[64];
    trek_tensor own;
};

/* Tensors with fewer bytes than this are `plain`; 0 with TREK_DEBUG=1, which must see each. */
extern size_t trek_small_limit;

/* Four at once, which most tensors do not exceed; elements from ndim on have no meaning. */
static inline void trek_copy_dims(int64_t to[TREK_MAX_DIMS], const int64_t from[TREK_MAX_DIMS], int ndim)
{
    memcpy(to, from, 4 * sizeof *to);
    if (ndim > 4)
        memcpy(to + 4, from + 4, 4 * sizeof *to);
}

/* Makes a contiguous tensor, uninitialised. `sizes` has ndim entries, which are already checked to be >= 0. It checks
 * for overflow and fails with DTYPE, DEVICE or MEMORY. */
trek_tensor *trek_tensor_make(int ndim, const int64_t *sizes, trek_dtype dtype, trek_device device);
/* Calls trek_tensor_make with the sizes of a contiguous tensor; for small results on the CPU it copies sizes and
 * strides instead. */
static inline trek_tensor *trek_tensor_make_like(const trek_tensor *x)
{
    size_t bytes = (size_t)x->numel * trek_item_size[x->dtype];
    trek_storage *s;
    if (bytes >= trek_small_limit || x->device.type != TREK_CPU)
        return trek_tensor_make(x->ndim, x->sizes, (trek_dtype)x->dtype, x->device);
    s = (trek_storage *)trek_block_alloc_fixed(sizeof *s);
    if (!s)
        return NULL;
    atomic_init(&s->refs, 1);
    s->version = 0;
    s->data = s->small;
    s->bytes = bytes;
    s->device = x->device;
    s->parent = NULL;
    s->release = NULL;
    s->plain = true;
    trek_tensor *t = &s->own;
    atomic_init(&t->refs, 1);
    t->dtype = x->dtype;
    t->ndim = x->ndim;
    t->contiguous = true;
    t->embedded = true;
    t->device = x->device;
    t->data = s->small;
    t->storage = s;
    t->numel = x->numel;
    trek_copy_dims(t->sizes, x->sizes, x->ndim);
    trek_copy_dims(t->strides, x->strides, x->ndim);
    return t;
}
/* Makes a view that shares t's storage, with the given data and strides. */
trek_tensor *trek_tensor_make_view(trek_tensor *t, char *data, int ndim, const int64_t *sizes, const int64_t *strides);
/* Makes a tensor over [offset, offset + size) bytes of `parent`, with its own version. */
trek_tensor *trek_tensor_make_part(trek_tensor *parent, size_t offset, trek_shape shape, trek_dtype dtype);
/* Makes `t` (the header stays, so that holders see it) use the data of `other`, which has the same shape and dtype. */
void trek_tensor_rebind(trek_tensor *t, trek_tensor *other);
void trek_tensor_set_contiguous(trek_tensor *t); /* computes the flag again */
void trek_tensor_destroy(trek_tensor *t); /* the last reference was released */
/* trek_tensor_release for a tensor that is not NULL. */
static inline void trek_tensor_drop(trek_tensor *t)
{
    if (!trek_ref_drop(&t->refs))
        return;
    trek_storage *s = t->storage;
    if (t->embedded && s->plain && t == &s->own && atomic_load_explicit(&s->refs, memory_order_acquire) == 1)
        trek_block_drop(s);
    else
        trek_tensor_destroy(t);
}
static inline void trek_tensor_bump(trek_tensor *t) { t->storage->version++; }

static inline bool trek_same_sizes(const trek_tensor *a, const trek_tensor *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->sizes[d] != b->sizes[d])
            return false;
    return true;
}

/* overlap.c: return whether two elements of t share bytes, and whether writing `to` changes what is read from `from`
 * at another index: they share bytes and are not the very same view. In cases that are too hard to decide (slicing
 * makes none): true. */
bool trek_overlaps_itself(const trek_tensor *t);
bool trek_overlaps_partly(const trek_tensor *to, const trek_tensor *from);
/* Fails with ARGUMENT, which names `what`, if one of these forbids writing `to` while reading `from` (may be NULL). */
trek_status trek_check_overwrite(const char *what, const trek_tensor *to, const trek_tensor *from);
/* Checks what every creation checks. Fails with SHAPE or DTYPE, which names `what`. */
trek_status trek_check_creation(const char *what, trek_shape shape, trek_dtype dtype);
void trek_release_nothing(void *data, void *arg); /* for wrapped memory whose owner wants no call */
/* Writes e.g. "[64, 784]" for a tensor; text has TREK_SHAPE_TEXT bytes. */
char *trek_tensor_shape_text(const trek_tensor *t, char *text);
/* Returns 0..ndim-1, or -1 and sets ARGUMENT, which names op, unless -ndim <= dim < ndim. */
int trek_normalize_dim(int64_t dim, int ndim, const char *op);
/* Returns `dims`, or the numbers of all `ndim` dimensions if it is trek_dims_all(). */
trek_dims_list trek_listed_dims(trek_dims_list dims, int ndim);
/* Resolves one -1 and checks that shape has `numel` elements. Fails with SHAPE, which names op. */
trek_status trek_resolve_shape(trek_shape *shape, int64_t numel, const char *op);
/* Returns whether a view of t with these sizes exists, and writes its strides. */
bool trek_view_strides(const trek_tensor *t, int ndim, const int64_t *sizes, int64_t *strides);

#endif /* C */

#endif
