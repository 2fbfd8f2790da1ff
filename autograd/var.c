/* SPDX-License-Identifier: Apache-2.0 */
/* Variables. */
#include "autograd/var.h"

#include <limits.h>

#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/backend.h"
#include "tensor/debug.h"
#include "tensor/pages.h"
#include "tensor/print.h"

atomic_int trek_hooks_alive;

static inline bool gone(const trek_var *var, const char *function) { return trek_gone(var, function, "the variable"); }

/* TREK_DEBUG=1 */
TREK_SELDOM static void release_seen(struct trek_var *var)
{
    if (trek_gone(var, "scope_end", "a variable"))
        return;
    trek_debug_scope_ends(var);
    trek_var_drop(var);
}

static void release_for_scope(struct trek_var *var) { trek_var_drop(var); }
static void retain_for_scope(struct trek_var *var) { trek_var_retain(var); }

__attribute__((constructor)) static void tell_scopes(void)
{
    trek_scope_release = trek_debug ? release_seen : release_for_scope;
    trek_scope_retain = retain_for_scope;
}

static void free_hooks(trek_hook *hooks)
{
    while (hooks) {
        trek_hook *next = hooks->next;
        trek_free(hooks);
        atomic_fetch_sub_explicit(&trek_hooks_alive, 1, memory_order_relaxed);
        hooks = next;
    }
}

void trek_loss_count_free(trek_loss_count *count)
{
    if (!count)
        return;
    trek_tensor_release(count->labels);
    trek_tensor_release(count->classes);
    trek_block_free(count);
}

/* Turns a freed variable into a scalar, so that looking at it does no harm. */
static void make_shell(void *block)
{
    trek_var *var = block;
    atomic_init(&var->refs, INT_MIN / 2); /* never counts up to one again */
    var->requires_grad = false;
    var->output = 0;
    var->data = trek_debug_gone_tensor();
    var->node = NULL;
    var->leaf = NULL;
}

TREK_SELDOM static void bury(trek_var *var)
{
    trek_debug_ended(var, "variable", NULL);
    trek_block_bury(var, var, make_shell);
}

void trek_var_destroy(trek_var *var)
{
    if (var->leaf) {
        trek_var_release(var->leaf->grad);
        free_hooks(var->leaf->hooks);
        trek_loss_count_free(var->leaf->count);
        trek_free(var->leaf);
    }
    trek_tensor_drop(var->data);
    bool in_node = trek_var_is_in_node(var);
    if (var->node)
        trek_node_release(var->node);
    if (in_node)
        return;
    if (trek_debug)
        bury(var);
    else
        trek_block_drop(var);
}

trek_var *trek_var_retain(trek_var *var)
{
    if (gone(var, "var_retain"))
        return NULL;
    if (var)
        trek_ref_take(&var->refs);
    return var;
}

void trek_var_release(trek_var *var)
{
    if (var && !gone(var, "var_release"))
        trek_var_drop(var);
}

trek_var *trek_var_new(trek_tensor *tensor, bool requires_grad)
{
    if (!tensor)
        return trek_fail_missing("var_new", "tensor"), NULL;
    if (requires_grad && !trek_dtype_is_float((trek_dtype)tensor->dtype))
        return trek_fail_null(TREK_ERR_DTYPE, "var_new: tensor: dtype %s; a gradient needs a floating dtype",
                              trek_dtype_name((trek_dtype)tensor->dtype));
    if (trek_gone(tensor, "var_new", "the tensor"))
        return NULL;
    trek_var *var = trek_var_make(tensor, NULL, 0, requires_grad);
    if (var)
        trek_tensor_retain(tensor);
    if (var && trek_debug)
        trek_debug_made(var, "variable", "of var_new", 0);
    return var;
}

trek_var *trek_var_wrap_scoped(trek_tensor *tensor, const char *op)
{
    if (!tensor)
        return trek_fail_missing(op, "tensor"), NULL;
    if (trek_gone(tensor, op, "the tensor"))
        return NULL;
    trek_var *var = trek_var_make(tensor, NULL, 0, false);
    if (var && trek_scope_push(var, op) == TREK_OK)
        return var;
    if (var)
        trek_block_free(var);
    trek_tensor_release(tensor);
    return NULL;
}

trek_var *trek_var_from(trek_tensor *tensor) { return trek_var_wrap_scoped(tensor, "var_from"); }

trek_var *trek_var_constant(trek_tensor *tensor) { return trek_var_wrap_scoped(trek_tensor_retain(tensor), "var_constant"); }

trek_var *trek_var_detach(trek_var *var)
{
    if (gone(var, "detach"))
        return NULL;
    return var ? trek_var_constant(var->data) : (trek_fail_missing("detach", "variable"), NULL);
}

/* --- looking ---------------------------------------------------------------------- */

trek_tensor *trek_var_data(const trek_var *var) { return var && !gone(var, "var_data") ? var->data : NULL; }
trek_var *trek_var_grad(const trek_var *var)
{
    return var && !gone(var, "var_grad") && var->leaf && var->leaf->has_grad ? var->leaf->grad : NULL;
}
trek_shape trek_var_shape(const trek_var *var) { return trek_tensor_shape(trek_var_data(var)); }
int trek_var_ndim(const trek_var *var) { return var && !gone(var, "var_ndim") ? var->data->ndim : 0; }
trek_dtype trek_var_dtype(const trek_var *var) { return trek_tensor_dtype(trek_var_data(var)); }
trek_device trek_var_device(const trek_var *var) { return trek_tensor_device(trek_var_data(var)); }
int64_t trek_var_numel(const trek_var *var) { return trek_tensor_numel(trek_var_data(var)); }
double trek_var_item(const trek_var *var) { return trek_tensor_item(trek_var_data(var)); }
trek_status trek_var_print(const trek_var *var, FILE *stream) { return trek_tensor_print(trek_var_data(var), stream); }
bool trek_var_requires_grad(const trek_var *var) { return var && !gone(var, "var_requires_grad") && var->requires_grad; }
bool trek_var_is_leaf(const trek_var *var) { return var && !gone(var, "var_is_leaf") && !var->node; }

int64_t trek_var_size(const trek_var *var, int dim)
{
    if (!var)
        return trek_fail_missing("var_size", "variable"), -1;
    if (gone(var, "var_size"))
        return -1;
    int at = trek_normalize_dim(dim, var->data->ndim, "var_size");
    if (at >= 0 && var->data->ndim == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "var_size: var: it is a scalar; must have a dimension"), -1;
    return at < 0 ? -1 : var->data->sizes[at];
}

trek_status trek_var_set_requires_grad(trek_var *var, bool requires_grad)
{
    if (!var)
        return trek_fail_missing("var_set_requires_grad", "variable");
    if (gone(var, "var_set_requires_grad"))
        return TREK_ERR_STATE;
    if (var->node)
        return trek_fail(TREK_ERR_STATE,
                         "var_set_requires_grad: var: it is the result of an op; must be a leaf, detach it first");
    if (requires_grad && !trek_dtype_is_float((trek_dtype)var->data->dtype))
        return trek_fail(TREK_ERR_DTYPE, "var_set_requires_grad: var: dtype %s; a gradient needs a floating dtype",
                         trek_dtype_name((trek_dtype)var->data->dtype));
    var->requires_grad = requires_grad;
    return TREK_OK;
}

/* --- gradients of leaves -------------------------------------------------------------- */

trek_leaf *trek_var_leaf(trek_var *var)
{
    if (!var->leaf)
        var->leaf = trek_calloc(1, sizeof *var->leaf);
    return var->leaf;
}

trek_status trek_var_place_grad(trek_var *var, trek_tensor *grad)
{
    trek_leaf *leaf = trek_var_leaf(var);
    trek_var *placed = leaf ? trek_var_new(grad, false) : NULL;
    if (!placed)
        return trek_error_status();
    trek_var_release(leaf->grad);
    leaf->grad = placed;
    leaf->grad_in_arena = true;
    leaf->has_grad = false;
    return TREK_OK;
}

trek_status trek_var_set_grad(trek_var *var, trek_var *grad)
{
    if (!var)
        return trek_fail_missing("var_set_grad", "variable");
    if (gone(var, "var_set_grad") || trek_gone(grad, "var_set_grad", "the gradient"))
        return TREK_ERR_STATE;
    if (!grad) {
        trek_var_zero_grad(var);
        return TREK_OK;
    }
    if (!trek_same_sizes(var->data, grad->data)) {
        char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
        return trek_fail(TREK_ERR_SHAPE, "var_set_grad: grad: %s; must have the variable's shape, %s",
                         trek_tensor_shape_text(grad->data, a), trek_tensor_shape_text(var->data, b));
    }
    bool wide = var->leaf && var->leaf->grad_in_arena && grad->data->dtype == var->leaf->grad->data->dtype;
    if (grad->data->dtype != var->data->dtype && !wide)
        return trek_fail(TREK_ERR_DTYPE, "var_set_grad: grad: dtype %s; must have the variable's, %s",
                         trek_dtype_name((trek_dtype)grad->data->dtype), trek_dtype_name((trek_dtype)var->data->dtype));
    trek_leaf *leaf = trek_var_leaf(var);
    if (!leaf)
        return trek_error_status();
    if (leaf->grad_in_arena) {
        trek_status status = trek_tensor_take_pages(leaf->grad->data);
        if (status == TREK_OK)
            status = trek_tensor_copy_from(leaf->grad->data, grad->data);
        leaf->has_grad |= status == TREK_OK;
        return status;
    }
    trek_var_retain(grad);
    trek_var_release(leaf->grad);
    leaf->grad = grad;
    leaf->has_grad = true;
    return TREK_OK;
}

void trek_var_zero_grad(trek_var *var)
{
    if (!var || gone(var, "var_zero_grad") || !var->leaf || !var->leaf->grad)
        return;
    trek_leaf *leaf = var->leaf;
    if (leaf->grad_in_arena) {
        if (leaf->has_grad)
            trek_tensor_release(trek_tensor_fill(leaf->grad->data, 0));
    } else {
        trek_var_release(leaf->grad);
        leaf->grad = NULL;
    }
    leaf->has_grad = false;
}

/* --- hooks ------------------------------------------------------------------------------ */

int trek_var_on_grad(trek_var *var, trek_grad_hook hook, void *arg)
{
    if (!var || !hook)
        return trek_fail_missing("var_on_grad", var ? "hook" : "variable"), 0;
    if (gone(var, "var_on_grad"))
        return 0;
    if (!var->requires_grad)
        return trek_fail(TREK_ERR_STATE, "var_on_grad: var: it needs no gradient; it must require one"), 0;
    trek_leaf *leaf = trek_var_leaf(var); /* counts handles for results as well */
    trek_hook *made = leaf ? trek_alloc(sizeof *made) : NULL;
    if (!made)
        return 0;
    *made = (trek_hook){ .fn = hook, .arg = arg, .handle = ++leaf->next_handle, .output = var->node ? var->output : 0 };
    trek_hook **list = var->node ? &var->node->hooks : &leaf->hooks;
    while (*list)
        list = &(*list)->next;
    *list = made;
    if (!var->node)
        atomic_fetch_add_explicit(&trek_hooks_alive, 1, memory_order_relaxed);
    return made->handle;
}

void trek_var_remove_hook(trek_var *var, int handle)
{
    if (!var || gone(var, "var_remove_hook") || !var->leaf)
        return;
    trek_hook **list = var->node ? &var->node->hooks : &var->leaf->hooks;
    for (; *list; list = &(*list)->next) {
        trek_hook *found = *list;
        if (found->handle != handle)
            continue;
        *list = found->next;
        trek_free(found);
        if (!var->node)
            atomic_fetch_sub_explicit(&trek_hooks_alive, 1, memory_order_relaxed);
        return;
    }
}
