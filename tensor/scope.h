/* SPDX-License-Identifier: Apache-2.0 */
/* Scopes own the results of ops: a result belongs to the innermost open scope
 * of the calling thread and is released when that scope ends. */
#ifndef TREK_TENSOR_SCOPE_H
#define TREK_TENSOR_SCOPE_H

#include "tensor/status.h"

TREK_BEGIN

/* A handle; belongs to the thread that began it. */
typedef struct trek_scope {
    uint32_t depth;  /* 0: no scope */
    uint32_t serial;
} trek_scope;

struct trek_var;

/* Opens a scope inside the present one. On failure (MEMORY) the handle is
 * empty and ending it does nothing. */
TREK_API trek_scope trek_scope_begin(void);

/* Ends the scope and all that were opened inside it: their results are
 * released. Error SCOPE if it has ended before. */
TREK_API trek_status trek_scope_end(trek_scope scope);

/* Ends the scope and moves `var`, a result of this scope or of one inside it,
 * to the next outer scope, where there is one (else it stays yours to release).
 * Returns var; NULL if var is NULL or the scope had ended. */
TREK_API struct trek_var *trek_scope_end_keep(trek_scope scope, struct trek_var *var);

TREK_END

#endif
