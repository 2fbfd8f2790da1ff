/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_TENSOR_SCOPE_INTERNAL_H
#define TREK_TENSOR_SCOPE_INTERNAL_H

#include "tensor/scope.h"

/* The calling thread's open scopes. They hold variables, of which this folder only knows how to release one. */
typedef struct trek_scope_stack {
    struct trek_var **values;  /* owned references, innermost last */
    int count, capacity;
    int depth, depth_capacity;
    struct trek_scope_mark {
        int start;        /* values from here on belong to the scope */
        uint32_t serial;
    } *marks;             /* [depth] */
    uint32_t next_serial;
    int room;             /* of values, when capacity is kept 0 so that every push is seen (TREK_DEBUG=1) */
} trek_scope_stack;

extern _Thread_local trek_scope_stack trek_scopes;

/* Set once by autograd/. */
extern void (*trek_scope_release)(struct trek_var *var);
extern void (*trek_scope_retain)(struct trek_var *var);

/* Gives one reference of var to the innermost scope. Without an open scope it sets SCOPE, which names `op`, and the
 * reference remains with the caller. */
trek_status trek_scope_push_slow(struct trek_var *var, const char *op);

static inline trek_status trek_scope_push(struct trek_var *var, const char *op)
{
    /* Not through a pointer: gcc 12's sanitizer treats the address of an external thread-local as null. */
    if (trek_scopes.depth > 0 && trek_scopes.count < trek_scopes.capacity) {
        trek_scopes.values[trek_scopes.count++] = var;
        return TREK_OK;
    }
    return trek_scope_push_slow(var, op);
}

/* A part of the innermost scope, for the library's own work that drops what it made before the scope ends: it returns
 * to the state at its beginning. Scopes begun since are closed. A release may run a user's code that comes here
 * again. */
typedef struct trek_scope_part {
    int count, depth;
} trek_scope_part;

static inline trek_scope_part trek_scope_part_begin(void)
{
    return (trek_scope_part){ trek_scopes.count, trek_scopes.depth };
}

static inline void trek_scope_part_end(trek_scope_part part)
{
    while (trek_scopes.count > part.count)
        trek_scope_release(trek_scopes.values[--trek_scopes.count]);
    trek_scopes.depth = part.depth;
}

/* Releases the calling thread's scope stack; open scopes are ended. */
void trek_scope_thread_end(void);

#endif
