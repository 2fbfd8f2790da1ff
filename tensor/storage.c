/* SPDX-License-Identifier: Apache-2.0 */
/* Storages, and tensor headers over them. */
#include <limits.h>
#include <stddef.h>
#include <string.h>

#include "tensor/backend.h"
#include "tensor/debug.h"
#include "tensor/dlpack.h"
#include "tensor/rank_context.h"
#include "tensor/tensor_internal.h"

size_t trek_small_limit = sizeof ((trek_storage *)NULL)->small + 1;

/* With TREK_DEBUG=1 each tensor has its own memory, so that it can be watched. Runs after debug.c has read the
 * environment. */
__attribute__((constructor(102))) static void nothing_is_small(void)
{
    if (trek_debug)
        trek_small_limit = 0;
}

static void make_storage_shell(void *block)
{
    trek_storage *s = block;
    atomic_init(&s->refs, INT_MIN / 2);
    trek_debug_shell(&s->own);
}

static void make_header_shell(void *block) { trek_debug_shell(block); }

static void storage_release(trek_storage *s)
{
    while (s && trek_ref_drop(&s->refs)) {
        trek_storage *parent = s->parent;
        if (s->release)
            s->release(s->data, s->handle);
        else if (!parent && s->data != s->small)
            trek_backends[s->device.type]->release(s->device, s->data, s->handle);
        if (trek_debug)
            trek_block_bury(s, &s->own, make_storage_shell);
        else
            trek_block_drop(s);
        s = parent;
    }
}

static trek_storage *storage_new(trek_device device)
{
    trek_storage *s = trek_block_alloc_fixed(sizeof *s);
    if (!s)
        return NULL;
    atomic_init(&s->refs, 1);
    s->version = 0;
    s->run = trek_rank_watched() ? trek_rank_watched()->run : 0;
    s->parent = NULL;
    s->release = NULL;
    s->plain = false;
    s->device = device;
    return s;
}

/* The storage's own header, which takes over the only reference. */
static trek_tensor *own_header(trek_storage *storage, trek_dtype dtype, int ndim)
{
    trek_tensor *t = &storage->own;
    atomic_init(&t->refs, 1);
    t->dtype = (uint8_t)dtype;
    t->ndim = (uint8_t)ndim;
    t->embedded = true;
    t->device = storage->device;
    t->storage = storage;
    return t;
}

/* Sets row-major strides and the number of elements. Returns false if the number of bytes overflows. */
static bool set_sizes(trek_tensor *t, int ndim, const int64_t *sizes, size_t item)
{
    int64_t numel = 1, stride = 1;
    bool overflow = false;
    for (int d = ndim - 1; d >= 0; d--) {
        t->sizes[d] = sizes[d];
        t->strides[d] = stride;
        overflow |= __builtin_mul_overflow(numel, sizes[d], &numel);
        overflow |= __builtin_mul_overflow(stride, sizes[d] > 1 ? sizes[d] : 1, &stride);
    }
    t->numel = numel;
    t->contiguous = true;
    int64_t bytes;
    return !overflow && !__builtin_mul_overflow(stride, (int64_t)item, &bytes);
}

trek_tensor *trek_tensor_make(int ndim, const int64_t *sizes, trek_dtype dtype, trek_device device)
{
    const trek_backend *backend = device.type == TREK_CPU ? trek_backends[TREK_CPU] : trek_backend_get(device.type);
    if (!backend)
        return NULL;
    trek_storage *s = storage_new(device);
    if (!s)
        return NULL;
    trek_tensor *t = own_header(s, dtype, ndim);
    size_t item = trek_item_size[dtype];
    if (!set_sizes(t, ndim, sizes, item)) {
        char text[TREK_SHAPE_TEXT];
        trek_fail(TREK_ERR_SHAPE, "tensor: shape: %s has more elements than memory can hold",
                  trek_shape_format(trek_shape_make(sizes, ndim), text, sizeof text));
        goto fail;
    }
    s->bytes = (size_t)t->numel * item;
    if (backend->host_accessible && s->bytes <= sizeof s->small) {
        s->data = s->small;
        s->plain = !trek_debug;
    } else {
        void *data;
        if (backend->allocate(device, s->bytes, &data, &s->handle) != TREK_OK)
            goto fail;
        s->data = data;
    }
    t->data = s->data;
    if (trek_debug && backend->host_accessible)
        trek_debug_fill(s->data, s->bytes);
    return t;
fail:
    trek_block_free(s);
    return NULL;
}

trek_tensor *trek_tensor_make_view(trek_tensor *base, char *data, int ndim, const int64_t *sizes, const int64_t *strides)
{
    trek_tensor *t = trek_block_alloc_fixed(sizeof *t);
    if (!t)
        return NULL;
    trek_ref_take(&base->storage->refs);
    atomic_init(&t->refs, 1);
    t->dtype = base->dtype;
    t->ndim = (uint8_t)ndim;
    t->embedded = false;
    t->storage = base->storage;
    t->device = base->device;
    t->data = data;
    t->numel = 1;
    for (int d = 0; d < ndim; d++) {
        t->sizes[d] = sizes[d];
        t->strides[d] = strides[d];
        t->numel *= sizes[d];
    }
    trek_tensor_set_contiguous(t);
    return t;
}

trek_tensor *trek_tensor_make_part(trek_tensor *parent, size_t offset, trek_shape shape, trek_dtype dtype)
{
    trek_storage *s = storage_new(parent->device);
    if (!s)
        return NULL;
    trek_tensor *t = own_header(s, dtype, shape.ndim);
    set_sizes(t, shape.ndim, shape.sizes, trek_dtype_size(dtype));
    trek_ref_take(&parent->storage->refs);
    s->parent = parent->storage;
    s->data = parent->data + offset;
    s->bytes = (size_t)t->numel * trek_dtype_size(dtype);
    t->data = s->data;
    return t;
}

trek_tensor *trek_tensor_wrap(void *data, trek_shape shape, trek_dtype dtype, void (*release)(void *, void *), void *arg)
{
    if (trek_check_creation("tensor_wrap", shape, dtype) != TREK_OK)
        return NULL;
    if (!data && trek_shape_numel(shape) > 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "tensor_wrap: data: NULL; it must be given");
    trek_storage *s = storage_new(trek_cpu(0));
    if (!s)
        return NULL;
    trek_tensor *t = own_header(s, dtype, shape.ndim);
    if (!set_sizes(t, shape.ndim, shape.sizes, trek_dtype_size(dtype))) {
        trek_block_free(s);
        return trek_fail_null(TREK_ERR_SHAPE, "tensor_wrap: shape: more elements than memory can hold");
    }
    s->data = t->data = data;
    s->bytes = (size_t)t->numel * trek_dtype_size(dtype);
    s->release = release ? release : trek_release_nothing;
    s->handle = arg;
    return t;
}

void trek_release_nothing(void *data, void *arg) { (void)data, (void)arg; }

static trek_storage *home_of(trek_tensor *t) { return (trek_storage *)(void *)((char *)t - offsetof(trek_storage, own)); }

/* Releases the storage that t uses. The own storage of an embedded header remains for the header; its data are freed
 * if nobody else uses them. */
static void leave_storage(trek_tensor *t)
{
    trek_storage *old = t->storage;
    if (!t->embedded || old != home_of(t)) {
        storage_release(old);
        return;
    }
    if (atomic_load_explicit(&old->refs, memory_order_acquire) > 1 || old->parent || old->release || old->data == old->small)
        return;
    trek_backends[old->device.type]->release(old->device, old->data, old->handle);
    old->data = old->small;
    old->bytes = 0;
}

void trek_tensor_rebind(trek_tensor *t, trek_tensor *other)
{
    if (other->storage != t->storage) { /* a header that is part of its storage must not hold it */
        trek_ref_take(&other->storage->refs);
        leave_storage(t);
        t->storage = other->storage;
    }
    t->data = other->data;
    t->device = other->device;
    t->contiguous = other->contiguous;
    memcpy(t->strides, other->strides, sizeof t->strides);
}

void trek_tensor_set_contiguous(trek_tensor *t)
{
    int64_t expected = 1;
    t->contiguous = true;
    if (t->numel == 0)
        return;
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->sizes[d] == 1)
            continue;
        if (t->strides[d] != expected) {
            t->contiguous = false;
            return;
        }
        expected *= t->sizes[d];
    }
}

/* Handles the header of a tensor that nobody holds any more; if it is in a storage that others use, it becomes a
 * shell now. */
TREK_SELDOM static void bury_header(trek_tensor *t, bool embedded)
{
    trek_debug_ended(t, "tensor", NULL);
    if (embedded)
        trek_debug_shell(t);
    else
        trek_block_bury(t, t, make_header_shell);
}

void trek_tensor_destroy(trek_tensor *t)
{
    trek_storage *storage = t->storage;
    bool embedded = t->embedded;
    if (trek_debug)
        bury_header(t, embedded);
    if (!embedded) {
        if (!trek_debug)
            trek_block_drop(t);
        storage_release(storage);
        return;
    }
    trek_storage *home = home_of(t);
    if (storage != home)
        storage_release(storage);
    storage_release(home);
}

trek_tensor *trek_tensor_retain(trek_tensor *tensor)
{
    if (trek_gone(tensor, "tensor_retain", "the tensor"))
        return NULL;
    if (tensor)
        trek_ref_take(&tensor->refs);
    return tensor;
}

void trek_tensor_release(trek_tensor *tensor)
{
    if (tensor && !trek_gone(tensor, "tensor_release", "the tensor"))
        trek_tensor_drop(tensor);
}
