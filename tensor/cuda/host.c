/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the core that only this plug-in uses, by their usual names; the others are in tensor/plugin_host.c. */
#include <stdarg.h>
#include <stdio.h>

#include "tensor/cuda/cuda.h"

trek_status trek_op_fail(const trek_op_call *call, trek_status status, const char *format, ...)
{
    char message[TREK_ERROR_SIZE - 64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return trek_fail(status, "%s: %s", call->op->name, message);
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
