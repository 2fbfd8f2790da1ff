/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_TENSOR_STATUS_INTERNAL_H
#define TREK_TENSOR_STATUS_INTERNAL_H

#include <stdatomic.h>

#include "tensor/status.h"

/* trek_fail, for functions that return a pointer. */
#define trek_fail_null(...) (trek_fail(__VA_ARGS__), NULL)

/* What a function does that was given NULL for a required object: NULL with an
 * error set is the result of an earlier failure and adds nothing; without one
 * it is the caller's mistake. Returns the thread's status, never TREK_OK. */
trek_status trek_fail_missing(const char *function, const char *what);

/* trek_fail where no error is set: what to say of a failure that mostly has said itself what it was. */
trek_status trek_fail_after(trek_status status, const char *format, ...) TREK_PRINTF(2, 3);

/* What the thread's error is known to have arisen in, as it was placed last; NULL: nothing. */
const void *trek_error_where(void);
/* Places it: "block2.3 (conv2d): ..." in front of the message, in place of what stands there; nothing for an empty path. */
void trek_error_place(const void *where, const char *path, const char *kind);

/* A search by name found nothing, which is no error yet: trek_fail_missing tells it, since its caller may have handed that on.
 * NULL: the last one did find something. */
void trek_note_search(const char *function, const char *name);

/* Logs if the level is on. */
void trek_log_message(trek_log_level level, const char *format, ...) TREK_PRINTF(2, 3);
/* Called before and after each message, by whoever logs, one at a time: what is rewritten on a terminal is taken away and comes
 * back. It logs nothing itself. NULL: nobody. */
void trek_log_set_around(void (*around)(bool before));

/* Told of messages from INFO up, whatever level is printed; NULL: nobody. From any thread, also several at a time. */
typedef void (*trek_log_watch_fn)(trek_log_level level, const char *message);
extern _Atomic(trek_log_watch_fn) trek_log_watcher;
/* Whether a message of this level goes anywhere: for what costs time to be told. */
bool trek_log_wanted(trek_log_level level);

/* The thread's error, moved out: written to *status and message (at least
 * TREK_ERROR_SIZE bytes), then cleared. How a rank's error goes to whoever joins it. */
#define TREK_ERROR_SIZE 1024
void trek_error_take(trek_status *status, char *message);

/* Tells the thread's errors apart: the number of the present one, or, if there is none, of the last. */
uint64_t trek_error_number(void);

/* The thread's error, or that there is none, put aside while something else is done. Put back it is the same error as before,
 * with its number, and the first: one that has been set meanwhile comes after it. */
typedef struct trek_kept_error {
    trek_status status;
    bool further;
    uint64_t number;
    size_t placed;
    const void *where;
    char message[TREK_ERROR_SIZE];
} trek_kept_error;
void trek_error_keep(trek_kept_error *kept);
void trek_error_put_back(const trek_kept_error *kept);

/* TREK_ERR_STATE in the child of a fork, where the threads are gone; else TREK_OK. */
extern bool trek_forked;
/* The same or TREK_DEBUG=1: every op is to be looked at. */
extern bool trek_not_lean;
trek_status trek_fail_forked(void);

#endif
