/* SPDX-License-Identifier: Apache-2.0 */
/* TREK_DEBUG=1: misuse of objects becomes an error that names them.
 *
 * Freed objects are filled with a byte, their memory is kept for a while, and a record says what they were: the
 * result of an op in a scope, or an object of a kind. Calls look their arguments up there. A freed variable or tensor
 * is left as a shell, a scalar NaN, so that code that only reads it does no harm before an op refuses it. New tensor
 * memory is filled, too.
 *
 * When it is off, it costs a test of trek_debug where something is made or freed outside of the fast path, and
 * nothing on the fast path. When it is on, the fast path is never taken: no cache of blocks has a block, a scope's
 * array is always full, and no tensor counts as small. */
#ifndef TREK_TENSOR_DEBUG_H
#define TREK_TENSOR_DEBUG_H

#include "tensor/status.h"
#include "tensor/tensor.h"

struct trek_tensor;

/* Keeps this code out of the way of programs that run without the mode. */
#ifdef __GNUC__
#define TREK_SELDOM __attribute__((cold, noinline))
#else
#define TREK_SELDOM
#endif

/* Read once, when the library is loaded. */
extern bool trek_debug;

/* Notes that an object was made: `kind` ("variable", "module"), what made it (an op, a class; may be NULL), and the
 * serial of the scope that owns it (0: none). The texts are kept by address. */
void trek_debug_made(const void *object, const char *kind, const char *by, uint32_t scope);
/* Notes that another scope owns it now. */
void trek_debug_moved(const void *object, uint32_t scope);
/* Notes that its scope gives it up, */
void trek_debug_scope_ends(const void *object);
/* and that it was freed: until its memory is used again, calls that get it report that. Makes the record if there is
 * none. */
void trek_debug_ended(const void *object, const char *kind, const char *by);
/* Fails with STATE: "add: input 1 was freed: result of mul in scope 17, which has ended". `what` may be NULL ("the
 * module"). */
TREK_SELDOM trek_status trek_debug_refuse(const void *object, const char *function, const char *what, int number);

/* Gives an object its only owner. Fails with STATE if it already has one. */
trek_status trek_debug_give(const void *object, const char *function, const char *what);

/* Returns true and sets the error if `object` is known to be freed. NULL is not. */
static inline bool trek_gone(const void *object, const char *function, const char *what)
{
    return trek_debug && object && trek_debug_refuse(object, function, what, -1) != TREK_OK;
}

/* --- used where memory is made and freed ------------------------------------ */

/* Fills memory that has not been written yet, or must not be read any more. */
void trek_debug_fill(void *memory, size_t bytes);
/* Keeps `memory`, which contains `object`, and frees it by `release` when there is enough newer memory. */
void trek_debug_keep(void *memory, size_t bytes, const void *object, void (*release)(void *memory, size_t bytes));
/* Frees all kept memory. */
void trek_debug_flush(void);
/* Turns a freed tensor's header into a shell. */
void trek_debug_shell(struct trek_tensor *tensor);
/* Returns the data of a freed variable: a scalar NaN. */
struct trek_tensor *trek_debug_gone_tensor(void);

#endif
