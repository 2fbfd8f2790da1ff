/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes, and the error that each thread keeps.
 *
 * A thread keeps its first error, code and message, until trek_error_clear is called; later errors do not replace it. A function
 * that creates an object returns NULL on failure. A function that performs an action returns its status. The
 * comments of trek's headers name a status without its prefix: SHAPE stands for TREK_ERR_SHAPE.
 *
 * Debug mode: TREK_DEBUG=1 in the environment makes the misuse of freed objects an error. Using an object after it was freed is
 * then an error with status STATE. Examples are a variable after its scope has ended, a second release, and a module, loader,
 * graph or optimizer after its free function. So is passing the same object twice to functions that take it over. The message
 * names the object, the serial number of the scope and the op that made it. Freed memory is kept for a while: at most 64 MiB of
 * tensor memory and the last 262144 objects. It is filled with the byte 0xff, or with TREK_DEBUG_POISON. New tensor memory is
 * filled in the same way, so floating elements that were never written are NaN. The misuse of an object that is no longer kept
 * is not recognised. */
#ifndef TREK_TENSOR_STATUS_H
#define TREK_TENSOR_STATUS_H

#include "tensor/common.h"

TREK_BEGIN

/* Lists every status except TREK_OK: X(name, text). */
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

/* The result of a function: TREK_OK, or TREK_ERR_ARGUMENT, TREK_ERR_SHAPE and so on, one for each row of
 * TREK_STATUS_LIST. */
typedef enum trek_status {
    TREK_OK = 0,
#define TREK_STATUS_ENUM(name, text) TREK_ERR_##name,
    TREK_STATUS_LIST(TREK_STATUS_ENUM)
#undef TREK_STATUS_ENUM
} trek_status;

/* Returns the calling thread's first error since its last trek_error_clear, or TREK_OK if there was none. */
TREK_API trek_status trek_error_status(void);

/* Returns the message of the calling thread's error, or "" if it has none. The string is valid until this thread clears
 * the error. */
TREK_API const char *trek_error(void);

/* Clears the calling thread's error. */
TREK_API void trek_error_clear(void);

/* Reports an error and returns `status`. The calling thread keeps the error if it has none yet.
 * Callbacks of the user report their errors with this function, too. If `status` is not one of the list,
 * TREK_ERR_CALLBACK is reported and returned. With TREK_ON_ERROR=abort in the environment it prints the message and aborts
 * the process, which helps under a debugger. */
TREK_API trek_status trek_fail(trek_status status, const char *format, ...) TREK_PRINTF(2, 3);

TREK_END

#endif
