/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's stack of scopes: one array of results, one of marks. */
#include "tensor/scope_internal.h"

#include "tensor/debug.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"
#include "tensor/thread_end.h"

_Thread_local trek_scope_stack trek_scopes;
void (*trek_scope_release)(struct trek_var *var);
void (*trek_scope_retain)(struct trek_var *var);

static trek_status more_marks(trek_scope_stack *s)
{
    trek_thread_at_end(TREK_THREAD_SCOPES, trek_scope_thread_end);
    return trek_array_grow(&s->marks, &s->depth_capacity, s->depth + 1, sizeof *s->marks);
}

trek_scope trek_scope_begin(void)
{
    trek_scope_stack *s = &trek_scopes;
    trek_scope none = { 0, 0 };
    if (s->depth == s->depth_capacity && more_marks(s) != TREK_OK)
        return none;
    struct trek_scope_mark *mark = &s->marks[s->depth++];
    mark->start = s->count;
    mark->serial = ++s->next_serial;
    return (trek_scope){ (uint32_t)s->depth, mark->serial };
}

static bool is_open(trek_scope scope)
{
    const trek_scope_stack *s = &trek_scopes;
    return scope.depth >= 1 && scope.depth <= (uint32_t)s->depth && s->marks[scope.depth - 1].serial == scope.serial;
}

/* Releasing a value may run code that comes here again (a user's free function), so the stack is consistent before
 * each release. */
static void release_from(int start, uint32_t depth)
{
    trek_scope_stack *s = &trek_scopes;
    while (s->count > start)
        trek_scope_release(s->values[--s->count]);
    s->depth = (int)depth - 1;
}

trek_status trek_scope_end(trek_scope scope)
{
    if (is_open(scope)) {
        release_from(trek_scopes.marks[scope.depth - 1].start, scope.depth);
        return TREK_OK;
    }
    if (scope.depth == 0)
        return TREK_OK; /* begin has failed and reported it */
    return trek_fail(TREK_ERR_SCOPE, "scope_end: scope: it has ended already, or is another thread's");
}

static bool in_scope(const trek_scope_stack *s, int start, const struct trek_var *var)
{
    for (int k = s->count - 1; k >= start; k--)
        if (s->values[k] == var)
            return true;
    return false;
}

struct trek_var *trek_scope_end_keep(trek_scope scope, struct trek_var *var)
{
    trek_scope_stack *s = &trek_scopes;
    if (!is_open(scope)) {
        if (scope.depth != 0)
            trek_fail(TREK_ERR_SCOPE, "scope_end_keep: scope: it has ended already, or is another thread's");
        return NULL;
    }
    int start = s->marks[scope.depth - 1].start;
    if (!var || !in_scope(s, start, var)) { /* what outlives the scope anyway is not moved */
        release_from(start, scope.depth);
        return var;
    }
    trek_scope_retain(var);
    release_from(start, scope.depth);
    if (s->depth > 0) {
        s->values[s->count++] = var; /* there is space, because var's own entry was freed */
        if (trek_debug)
            trek_debug_moved(var, s->marks[s->depth - 1].serial);
    }
    return var;
}

trek_status trek_scope_push_slow(struct trek_var *var, const char *op)
{
    trek_scope_stack *s = &trek_scopes;
    if (s->depth == 0)
        return trek_fail(TREK_ERR_SCOPE, "%s: no scope is open; begin one with trek_scope_begin, or use a loader's loop", op);
    if (trek_array_grow(&s->values, trek_debug ? &s->room : &s->capacity, s->count + 1, sizeof *s->values) != TREK_OK)
        return TREK_ERR_MEMORY;
    s->values[s->count++] = var;
    if (trek_debug)
        trek_debug_made(var, "variable", op, s->marks[s->depth - 1].serial);
    return TREK_OK;
}

void trek_scope_thread_end(void)
{
    trek_scope_stack *s = &trek_scopes;
    if (s->depth > 0)
        release_from(0, 1);
    trek_free(s->values);
    trek_free(s->marks);
    *s = (trek_scope_stack){ .next_serial = s->next_serial };
}
