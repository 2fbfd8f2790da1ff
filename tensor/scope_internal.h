/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_TENSOR_SCOPE_INTERNAL_H
#define TREK_TENSOR_SCOPE_INTERNAL_H

#include "tensor/scope.h"

/* The calling thread's open scopes. What they hold are variables, of which this
 * floor knows only how to release one. */
typedef struct trek_scope_stack {
    struct trek_var **values;  /* owned references, innermost last */
    int count, capacity;
    int depth, depth_capacity;
    struct trek_scope_mark {
        int start;        /* values from here belong to the scope */
        uint32_t serial;
    } *marks;             /* [depth] */
    uint32_t next_serial;
    int room;             /* of values, where capacity is kept 0 so that every push is seen (TREK_DEBUG=1) */
} trek_scope_stack;

extern _Thread_local trek_scope_stack trek_scopes;

/* Set once by autograd/. */
extern void (*trek_scope_release)(struct trek_var *var);
extern void (*trek_scope_retain)(struct trek_var *var);

/* Gives one reference of var to the innermost scope. Without an open scope:
 * error SCOPE that names `op`, and the reference stays with the caller. */
trek_status trek_scope_push_slow(struct trek_var *var, const char *op);

static inline trek_status trek_scope_push(struct trek_var *var, const char *op)
{
    /* Not through a pointer: gcc 12's sanitizer takes the address of an external
     * thread-local for null. */
    if (trek_scopes.depth > 0 && trek_scopes.count < trek_scopes.capacity) {
        trek_scopes.values[trek_scopes.count++] = var;
        return TREK_OK;
    }
    return trek_scope_push_slow(var, op);
}

/* Releases the calling thread's scope stack; all scopes must have ended or are ended. */
void trek_scope_thread_end(void);

#endif
