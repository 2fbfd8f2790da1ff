/* SPDX-License-Identifier: Apache-2.0 */
/* Tables and strings in memory of trek_alloc. Plug-ins are compiled with this file, too. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

static trek_status fail_overflow(size_t count, size_t size)
{
    return trek_fail(TREK_ERR_MEMORY, "out of memory: %zu times %zu bytes were asked for", count, size);
}

void *trek_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        fail_overflow(count, size);
        return NULL;
    }
    void *memory = trek_alloc(bytes);
    return memory ? memset(memory, 0, bytes) : NULL;
}

char *trek_strdup(const char *text)
{
    size_t length = strlen(text) + 1;
    char *copy = trek_alloc(length);
    return copy ? memcpy(copy, text, length) : NULL;
}

char *trek_format(const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *text = length >= 0 ? trek_alloc((size_t)length + 1) : NULL;
    if (text)
        vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}

trek_status trek_array_grow(void *array, int *capacity, int count, size_t item)
{
    if (count <= *capacity)
        return TREK_OK;
    int wanted = *capacity < 8 ? 16 : *capacity * 2;
    if (wanted < count)
        wanted = count;
    void *old;
    memcpy(&old, array, sizeof old);
    size_t bytes;
    if (__builtin_mul_overflow((size_t)wanted, item, &bytes))
        return fail_overflow((size_t)wanted, item);
    void *larger = trek_realloc(old, bytes);
    if (!larger)
        return TREK_ERR_MEMORY;
    memcpy(array, &larger, sizeof larger);
    *capacity = wanted;
    return TREK_OK;
}
