/* SPDX-License-Identifier: Apache-2.0 */
/* TREK_DEBUG=1: misuse of objects is a named error.
 *
 * What is freed is filled with a byte, its memory is kept for a while, and a
 * record says what it was: a result of which op in which scope, or an object of
 * which kind. Calls look their arguments up there. A freed variable or tensor is
 * left as a shell, a scalar NaN, so that code that only looks at it does no harm
 * before an op refuses it. Fresh tensor memory is filled, too.
 *
 * Off, it costs a look at trek_debug where something is made or freed out of the
 * lean way, which leaves the lean way alone: nothing is ever in a cache of blocks,
 * a scope's array never has room, no tensor is small. Internal. */
#ifndef TREK_TENSOR_DEBUG_H
#define TREK_TENSOR_DEBUG_H

#include "tensor/status.h"

struct trek_tensor;

/* Kept out of the way of what runs without the mode. */
#ifdef __GNUC__
#define TREK_SELDOM __attribute__((cold, noinline))
#else
#define TREK_SELDOM
#endif

/* Read once, when the library is loaded. */
extern bool trek_debug;

/* An object was made: `kind` ("variable", "module"), what made it (an op, a class; may be NULL), and the
 * serial of the scope that owns it (0: none). The texts are kept by address. */
void trek_debug_made(const void *object, const char *kind, const char *by, uint32_t scope);
/* Another scope owns it now. */
void trek_debug_moved(const void *object, uint32_t scope);
/* Its scope gives it up, */
void trek_debug_scope_ends(const void *object);
/* and it is gone: until its memory is used again, calls that are given it say so. Makes the record where there is none. */
void trek_debug_ended(const void *object, const char *kind, const char *by);
bool trek_debug_is_gone(const void *object);
/* STATE: "add: input 1 was freed: result of mul in scope 17, which has ended"; `what` may be NULL ("the module"). */
TREK_SELDOM trek_status trek_debug_refuse(const void *object, const char *function, const char *what, int number);

/* An object that has one owner gets it; STATE if it has one. */
trek_status trek_debug_give(const void *object, const char *function, const char *what);

/* True, and the error set, if `object` is known to be freed. NULL is not. */
static inline bool trek_gone(const void *object, const char *function, const char *what)
{
    return trek_debug && object && trek_debug_refuse(object, function, what, -1) != TREK_OK;
}

/* --- used where memory is made and freed ------------------------------------ */

/* Fills what has not been written yet, or is not to be read any more. */
void trek_debug_fill(void *memory, size_t bytes);
/* Keeps `memory`, in which `object` lies, and gives it back by `release` when there is newer memory enough. */
void trek_debug_keep(void *memory, size_t bytes, const void *object, void (*release)(void *memory, size_t bytes));
/* Gives all of it back. */
void trek_debug_flush(void);
/* Makes a freed tensor's header a shell. */
void trek_debug_shell(struct trek_tensor *tensor);
/* What a freed variable's data is: a scalar NaN. */
struct trek_tensor *trek_debug_gone_tensor(void);

#endif
