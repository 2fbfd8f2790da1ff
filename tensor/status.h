/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes and the sticky error of a thread.
 *
 * The first error of a thread sticks, code and message, until it is cleared;
 * later errors do not replace it. A function that makes something returns NULL
 * on failure, a function that does something returns the status. */
#ifndef TREK_TENSOR_STATUS_H
#define TREK_TENSOR_STATUS_H

#include "tensor/common.h"

TREK_BEGIN

/* X(name, text): every status but TREK_OK. */
#define TREK_STATUS_LIST(X)                                          \
    X(ARGUMENT, "invalid argument")                                  \
    X(SHAPE, "shapes do not fit")                                    \
    X(DTYPE, "dtype not supported here")                             \
    X(DEVICE, "devices do not fit")                                  \
    X(SCOPE, "no open scope, or a scope that has ended")             \
    X(MEMORY, "out of memory")                                       \
    X(IO, "input or output failed")                                  \
    X(FORMAT, "malformed data")                                      \
    X(UNSUPPORTED, "not supported")                                  \
    X(CUDA, "CUDA failed")                                           \
    X(COMM, "communication failed")                                  \
    X(PEER, "another rank failed")                                   \
    X(TIMEOUT, "deadline passed")                                    \
    X(CANCELLED, "cancelled")                                        \
    X(CALLBACK, "a user's callback failed")                          \
    X(STATE, "call not allowed in this state")

/* TREK_OK, or what went wrong: the list above. */
typedef enum trek_status {
    TREK_OK = 0,
#define TREK_STATUS_ENUM(name, text) TREK_ERR_##name,
    TREK_STATUS_LIST(TREK_STATUS_ENUM)
#undef TREK_STATUS_ENUM
} trek_status;

/* The calling thread's first error since the last trek_error_clear, or TREK_OK. */
TREK_API trek_status trek_error_status(void);

/* Its message, "" if there is none. Valid until this thread clears the error. */
TREK_API const char *trek_error(void);

/* Forgets the calling thread's error. */
TREK_API void trek_error_clear(void);

/* Reports an error: keeps it if the thread has none yet, and returns `status`.
 * This is how user callbacks report, too. With TREK_ON_ERROR=abort in the
 * environment it prints the message and aborts, for use under a debugger. */
TREK_API trek_status trek_fail(trek_status status, const char *format, ...) TREK_PRINTF(2, 3);

/* The text of a code, such as "out of memory". Never NULL. */
TREK_API const char *trek_status_text(trek_status status);

/* The code's name, such as "TREK_ERR_MEMORY". Never NULL. */
TREK_API const char *trek_status_name(trek_status status);

/* From what ends work to what tells of it. */
typedef enum trek_log_level { TREK_LOG_ERROR, TREK_LOG_WARNING, TREK_LOG_INFO, TREK_LOG_DEBUG } trek_log_level;

/* What messages are sent to; arg is trek_log_set's. */
typedef void (*trek_log_fn)(trek_log_level level, const char *message, void *arg);

/* Sends messages of at most `level` to `fn`, from any thread, one at a time.
 * By default warnings go to stderr and nothing else is printed; fn == NULL
 * silences everything. The environment's TREK_LOG=error|warning|info|debug sets
 * the initial level. A second error of a thread, while the first is not cleared, is
 * a warning, once. */
TREK_API void trek_log_set(trek_log_level level, trek_log_fn fn, void *arg);

/* TREK_DEBUG=1 in the environment: misuse of objects that were freed (a variable
 * after its scope, a second release, a module, loader, graph or optimizer after its
 * free), or given away twice, is an error STATE that names the object, the scope's
 * serial and the op that made it. What is freed is kept for a while (at most 64 MiB
 * of tensor memory, and the last 262144 objects), filled with 0xff or
 * TREK_DEBUG_POISON; so is tensor memory that was not written yet: floats are NaN.
 * A call whose misuse is older than what is kept is not recognised. */

TREK_END

#endif
