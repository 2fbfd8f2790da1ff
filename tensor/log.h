/* SPDX-License-Identifier: Apache-2.0 */
/* Names and descriptions of statuses, and where warnings and other messages go. */
#ifndef TREK_TENSOR_LOG_H
#define TREK_TENSOR_LOG_H

#include "tensor/status.h"

TREK_BEGIN

/* Returns a description of a status, such as "out of memory". The string is never NULL and never freed. */
TREK_API const char *trek_status_description(trek_status status);
/* Returns the name of a status, such as "TREK_ERR_MEMORY". The string is never NULL and never freed. */
TREK_API const char *trek_status_name(trek_status status);

/* How important a message is. The most severe level comes first. */
typedef enum trek_log_level { TREK_LOG_LEVEL_ERROR, TREK_LOG_LEVEL_WARNING, TREK_LOG_LEVEL_INFO,
                              TREK_LOG_LEVEL_DEBUG } trek_log_level;

/* A function that receives messages. `arg` is the value that was given to trek_log_set. */
typedef void (*trek_log_fn)(trek_log_level level, const char *message, void *arg);

/* Sends the messages of `level` and of the more severe levels to `fn`. NULL for `fn` turns all messages off.
 * By default errors and warnings are printed to stderr. The environment variable TREK_LOG=error|warning|info|debug sets the
 * initial level. If a thread has a second error before the first is cleared, one warning is sent about it.
 * `fn` is called by any thread, but never by two at the same time. */
TREK_API void trek_log_set(trek_log_level level, trek_log_fn fn, void *arg);

TREK_END

#endif
