/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_TENSOR_STATUS_INTERNAL_H
#define TREK_TENSOR_STATUS_INTERNAL_H

#include <stdatomic.h>

#include "tensor/log.h"
#include "tensor/status.h"

/* trek_fail for functions that return a pointer. */
#define trek_fail_null(...) (trek_fail(__VA_ARGS__), NULL)

/* Handles NULL for a required object. NULL with an error set is the result of an earlier failure, and nothing is
 * added; without an error it is the caller's mistake. Returns the thread's status, never TREK_OK. */
trek_status trek_fail_missing(const char *function, const char *what);

/* Calls trek_fail if no error is set, after a failure that usually has reported itself. */
trek_status trek_fail_after(trek_status status, const char *format, ...) TREK_PRINTF(2, 3);

/* Returns the object in which the thread's error is known to have arisen, as it was placed last; NULL: none. */
const void *trek_error_where(void);
/* Says where the error arose: "block2.3 (conv2d): ..." before the message, instead of an earlier such text; nothing
 * for an empty path. */
void trek_error_place(const void *where, const char *path, const char *kind);

/* Notes that a search by name has found nothing, which is not an error yet: trek_fail_missing reports it if the
 * caller has passed that NULL on. NULL: the last search has found something. */
void trek_note_search(const char *function, const char *name);

/* Logs if the level is on. */
void trek_log_message(trek_log_level level, const char *format, ...) TREK_PRINTF(2, 3);
/* Called before and after each message by the thread that logs, one at a time, so that text that is rewritten on a
 * terminal can be removed and written again. It must not log. NULL: none. */
void trek_log_set_around(void (*around)(bool before));

/* Called for messages from INFO up, whatever level is printed; NULL: none. From any thread, also several at a time. */
typedef void (*trek_log_watch_fn)(trek_log_level level, const char *message);
extern _Atomic(trek_log_watch_fn) trek_log_watcher;
/* Returns whether a message of this level goes anywhere, for messages that take time to make. */
bool trek_log_wanted(trek_log_level level);

/* Moves the thread's error out: writes it to *status and message (at least TREK_ERROR_SIZE bytes), then clears it. A
 * rank's error goes to the thread that joins it in this way. */
#define TREK_ERROR_SIZE 1024
void trek_error_take(trek_status *status, char *message);

/* Identifies the thread's errors: the number of the current one or, if there is none, of the last. */
uint64_t trek_error_number(void);

/* The thread's error, or its absence, put aside while something else is done. When it is put back, it is the same
 * error as before, with its number, and it is the first: an error that was set meanwhile comes after it. */
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

/* TREK_ERR_STATE in the child of a fork, where the threads do not exist; otherwise TREK_OK. */
extern bool trek_forked;
/* Set in the child of a fork, with TREK_DEBUG=1, and when there are pages with keepers: every op must be checked. */
extern atomic_bool trek_not_lean;
static inline bool trek_is_lean(void) { return !atomic_load_explicit(&trek_not_lean, memory_order_relaxed); }
trek_status trek_fail_forked(void);
/* Fails with IO: what was done with the file ("open"), and errno's reason. */
trek_status trek_fail_system(const char *path, const char *what);

#endif
