/* SPDX-License-Identifier: Apache-2.0 */
/* Scopes own the results of ops. A result belongs to the innermost open scope of the calling thread and is released when
 * that scope ends. */
#ifndef TREK_TENSOR_SCOPE_H
#define TREK_TENSOR_SCOPE_H

#include "tensor/status.h"

TREK_BEGIN

/* A handle of a scope. Only the thread that began the scope may use it. */
typedef struct trek_scope {
    uint32_t depth;  /* the number of scopes that were open with this one, itself included; 0 means that the handle is empty */
    uint32_t serial; /* the number of this scope among all scopes of its thread */
} trek_scope;

/* A variable (autograd/var.h). */
struct trek_var;

/* Opens a scope inside the current scope and returns its handle.
 * Errors: MEMORY; the handle is then empty, and ending it does nothing. */
TREK_API trek_scope trek_scope_begin(void);

/* Ends the scope and every scope that was opened inside it, and releases their results.
 * Errors: SCOPE if it has ended before or belongs to another thread. */
TREK_API trek_status trek_scope_end(trek_scope scope);

/* Ends the scope as trek_scope_end does, but keeps `var`, a result of this scope or of one inside it. `var` moves to the next
 * outer scope. Without an outer scope, the caller owns `var` and must release it. A variable that does not belong to the scope
 * is not changed. Returns `var`, or NULL if `var` is NULL or the scope has ended before.
 * Errors: SCOPE if the scope has ended before or belongs to another thread. */
TREK_API struct trek_var *trek_scope_end_keep(trek_scope scope, struct trek_var *var);

TREK_END

#endif
