/* SPDX-License-Identifier: Apache-2.0 */
/* Dtypes, devices and shapes. */
#include "tensor/types.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/backend.h"
#include "tensor/environment.h"
#include "tensor/pool.h"

static const struct {
    const char *name;
    size_t size;
    char kind;
} dtypes[] = {
#define DTYPE_ROW(NAME, name, size, kind) [TREK_##NAME] = { #name, size, kind },
    TREK_DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};

const uint8_t trek_item_size[TREK_DTYPE_COUNT] = {
#define DTYPE_SIZE(NAME, name, size, kind) [TREK_##NAME] = size,
    TREK_DTYPE_LIST(DTYPE_SIZE)
#undef DTYPE_SIZE
};

static bool valid(trek_dtype dtype) { return (unsigned)dtype < TREK_DTYPE_COUNT; }

size_t trek_dtype_size(trek_dtype dtype) { return valid(dtype) ? dtypes[dtype].size : 0; }
const char *trek_dtype_name(trek_dtype dtype) { return valid(dtype) ? dtypes[dtype].name : "invalid"; }
bool trek_dtype_is_float(trek_dtype dtype) { return valid(dtype) && dtypes[dtype].kind == 'f'; }

/* The higher kind wins; within a kind the wider one; bf16 with f16 gives f32. */
static int rank_of(trek_dtype dtype)
{
    static const int ranks[TREK_DTYPE_COUNT] = { [TREK_BOOL] = 0, [TREK_U8] = 1,   [TREK_I32] = 2, [TREK_I64] = 3,
                                                 [TREK_F16] = 4,  [TREK_BF16] = 4, [TREK_F32] = 5, [TREK_F64] = 6 };
    return ranks[dtype];
}

trek_dtype trek_dtype_promote(trek_dtype a, trek_dtype b)
{
    if (!valid(a) || !valid(b))
        return valid(a) ? a : b;
    if (a != b && rank_of(a) == rank_of(b))
        return TREK_F32;
    return rank_of(a) >= rank_of(b) ? a : b;
}

/* --- devices ---------------------------------------------------------------- */

trek_device trek_cpu(int index) { return (trek_device){ TREK_CPU, index }; }
trek_device trek_cuda(int index) { return (trek_device){ TREK_CUDA, index }; }

trek_device trek_device_resolve(trek_device device)
{
    return device.type == TREK_DEVICE_UNSET && device.index == 0 ? trek_device_default() : device;
}

const trek_device *trek_devices_resolve(const trek_device *devices, int n, trek_device *room)
{
    for (int k = 0; devices && k < n; k++)
        room[k] = trek_device_resolve(devices[k]);
    return devices ? room : NULL;
}

bool trek_device_equal(trek_device a, trek_device b)
{
    a = trek_device_resolve(a);
    b = trek_device_resolve(b);
    return a.type == b.type && a.index == b.index;
}

static const char *const device_names[TREK_DEVICE_TYPE_COUNT] = { [TREK_DEVICE_UNSET] = "?", [TREK_CPU] = "cpu",
                                                                  [TREK_CUDA] = "cuda" };

static bool parse_device(const char *text, size_t length, trek_device *device)
{
    for (int type = TREK_CPU; type < TREK_DEVICE_TYPE_COUNT; type++) {
        size_t n = strlen(device_names[type]);
        if (length < n || strncmp(text, device_names[type], n) != 0)
            continue;
        int index = 0;
        if (length > n) {
            if (text[n] != ':' || length == n + 1 || length > n + 5)
                return false;
            for (size_t k = n + 1; k < length; k++) {
                if (text[k] < '0' || text[k] > '9')
                    return false;
                index = index * 10 + (text[k] - '0');
            }
        }
        *device = (trek_device){ (trek_device_type)type, index };
        return true;
    }
    return false;
}

trek_status trek_device_parse(const char *text, trek_device *device)
{
    if (!text || !device)
        return trek_fail(TREK_ERR_ARGUMENT, "device_parse: text or device: NULL; both must be given");
    if (!parse_device(text, strlen(text), device))
        return trek_fail(TREK_ERR_ARGUMENT, "device_parse: text: \"%.40s\"; must be a device such as cpu, cpu:1 or cuda:0", text);
    return TREK_OK;
}

trek_device trek_device_default(void)
{
    trek_device device;
    const char *listed = getenv("TREK_DEVICES");
    if (listed && parse_device(listed, strcspn(listed, ","), &device))
        return device;
    if (listed && *listed)
        trek_log_message(TREK_LOG_LEVEL_WARNING,
                         "TREK_DEVICES=%.80s: it does not begin with a device such as cpu:0 or cuda:1: it is ignored here",
                         listed);
    int gpus = trek_device_count(TREK_CUDA);
    return gpus > 0 ? trek_cuda(trek_environment_local_rank() % gpus) : trek_cpu(0);
}

int trek_device_count(trek_device_type type)
{
    if (type == TREK_CPU)
        return trek_cores();
    const trek_backend *backend = trek_backend_find(type, NULL, 0);
    return backend && backend->device_count ? backend->device_count() : 0;
}

trek_status trek_device_info_get(trek_device device, trek_device_info *info)
{
    if (!info)
        return trek_fail_missing("device_info_get", "info");
    memset(info, 0, sizeof *info);
    device = trek_device_resolve(device);
    char why[256];
    const trek_backend *backend = trek_backend_get(device.type);
    if (!backend)
        return trek_error_status();
    if (!backend->usable(device.index, why, sizeof why))
        return trek_fail(TREK_ERR_DEVICE, "device_info_get: %s", why);
    return trek_backends[device.type]->info(device.index, info);
}

char *trek_device_name(trek_device device, char *text, size_t capacity)
{
    device = trek_device_resolve(device);
    const char *name = (unsigned)device.type < TREK_DEVICE_TYPE_COUNT ? device_names[device.type] : "?";
    snprintf(text, capacity, "%s:%d", name, device.index);
    return text;
}

trek_status trek_device_sync(trek_device device)
{
    device = trek_device_resolve(device);
    const trek_backend *backend = trek_backend_get(device.type);
    if (!backend)
        return trek_error_status();
    return backend->sync ? backend->sync(device) : TREK_OK;
}

static atomic_int matmul_precision = TREK_MATMUL_PRECISION_HIGHEST;

trek_status trek_matmul_precision_set(trek_matmul_precision precision)
{
    if ((unsigned)precision > TREK_MATMUL_PRECISION_MEDIUM)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "matmul_precision_set: precision: %d; must be TREK_MATMUL_PRECISION_HIGHEST, _HIGH or _MEDIUM",
                         (int)precision);
    atomic_store_explicit(&matmul_precision, (int)precision, memory_order_relaxed);
    return TREK_OK;
}

trek_matmul_precision trek_matmul_precision_get(void)
{
    return (trek_matmul_precision)atomic_load_explicit(&matmul_precision, memory_order_relaxed);
}

/* --- shapes ------------------------------------------------------------------ */

trek_shape trek_shape_make(const int64_t *sizes, int ndim)
{
    trek_shape shape = { .ndim = ndim > 0 && !sizes ? TREK_MAX_DIMS + 1 : ndim }; /* which every function refuses */
    for (int d = 0; sizes && d < ndim && d < TREK_MAX_DIMS; d++)
        shape.sizes[d] = sizes[d];
    return shape;
}

int64_t trek_shape_numel(trek_shape shape)
{
    int64_t numel = 1;
    for (int d = 0; d < shape.ndim && d < TREK_MAX_DIMS; d++)
        if (__builtin_mul_overflow(numel, shape.sizes[d], &numel))
            return INT64_MAX;
    return numel;
}

bool trek_shape_equal(trek_shape a, trek_shape b)
{
    if (a.ndim != b.ndim)
        return false;
    for (int d = 0; d < a.ndim && d < TREK_MAX_DIMS; d++)
        if (a.sizes[d] != b.sizes[d])
            return false;
    return true;
}

char *trek_shape_format(trek_shape shape, char *text, size_t capacity)
{
    char whole[TREK_SHAPE_TEXT] = "[";
    size_t at = 1;
    for (int d = 0; d < shape.ndim && d < TREK_MAX_DIMS; d++)
        at += (size_t)snprintf(whole + at, sizeof whole - at, d ? ", %lld" : "%lld", (long long)shape.sizes[d]);
    snprintf(whole + at, sizeof whole - at, shape.ndim > TREK_MAX_DIMS ? ", ...]" : "]");
    snprintf(text, capacity, "%s", whole);
    return text;
}
