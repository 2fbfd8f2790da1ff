/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the core that a plug-in uses, by their usual names. Only plug-ins are compiled with this file. The
 * functions are hidden, so that they cannot be mistaken for the core's own. */
#include <stdarg.h>
#include <stdio.h>

#include "tensor/memory_internal.h"
#include "tensor/plugin.h"
#include "tensor/status_internal.h"

const trek_host *trek_plugin_host;

trek_status trek_fail(trek_status status, const char *format, ...)
{
    char message[TREK_ERROR_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return trek_plugin_host->fail(status, message);
}

trek_status trek_fail_after(trek_status status, const char *format, ...)
{
    if (trek_error_status() != TREK_OK)
        return status;
    char message[TREK_ERROR_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return trek_plugin_host->fail(status, message);
}

trek_status trek_fail_missing(const char *function, const char *what) { return trek_plugin_host->fail_missing(function, what); }

void trek_log_message(trek_log_level level, const char *format, ...)
{
    char message[TREK_ERROR_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    trek_plugin_host->log_message(level, message);
}

trek_status trek_error_status(void) { return trek_plugin_host->status_get(); }
void trek_error_clear(void) { trek_plugin_host->error_clear(); }
void *trek_alloc(size_t bytes) { return trek_plugin_host->alloc(bytes); }
void *trek_realloc(void *memory, size_t bytes) { return trek_plugin_host->realloc(memory, bytes); }
void trek_free(void *memory) { trek_plugin_host->free(memory); }
