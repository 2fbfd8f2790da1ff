/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the core that the plug-in uses, by their usual names. They are hidden, so that they cannot be
 * mistaken for the core's own. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tensor/cuda/cuda.h"

const trek_host *trek_cuda_host;

trek_status trek_fail(trek_status status, const char *format, ...)
{
    char message[TREK_ERROR_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return trek_cuda_host->fail(status, message);
}

trek_status trek_op_fail(const trek_op_call *call, trek_status status, const char *format, ...)
{
    char message[TREK_ERROR_SIZE - 64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return trek_fail(status, "%s: %s", call->op->name, message);
}

void trek_log_message(trek_log_level level, const char *format, ...)
{
    char message[TREK_ERROR_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    trek_cuda_host->log_message(level, message);
}

trek_status trek_error_status(void) { return trek_cuda_host->status_get(); }
void trek_error_clear(void) { trek_cuda_host->error_clear(); }
void *trek_alloc(size_t bytes) { return trek_cuda_host->alloc(bytes); }
void trek_free(void *memory) { trek_cuda_host->free(memory); }

void *trek_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        trek_fail(TREK_ERR_MEMORY, "out of memory: %zu times %zu bytes were asked for", count, size);
        return NULL;
    }
    void *memory = trek_alloc(bytes);
    return memory ? memset(memory, 0, bytes) : NULL;
}

/* Small tables that the core also has. */
const uint8_t trek_item_size[TREK_DTYPE_COUNT] = {
#define ITEM_SIZE(NAME, name, size, kind) [TREK_##NAME] = size,
    TREK_DTYPE_LIST(ITEM_SIZE)
#undef ITEM_SIZE
};

const char *trek_dtype_name(trek_dtype dtype)
{
    static const char *const names[TREK_DTYPE_COUNT] = {
#define NAME_OF(NAME, name, size, kind) [TREK_##NAME] = #name,
        TREK_DTYPE_LIST(NAME_OF)
#undef NAME_OF
    };
    return (unsigned)dtype < TREK_DTYPE_COUNT ? names[dtype] : "invalid";
}
