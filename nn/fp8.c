/* SPDX-License-Identifier: Apache-2.0 */
/* Selecting the layers that multiply 8-bit operands. fp8_layer.c decides when they do, and autograd/fp8.c has the
 * products. */
#include "nn/fp8_internal.h"

#include <inttypes.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "nn/walk.h"
#include "tensor/debug.h"
#include "tensor/fp8.h"
#include "tensor/memory_internal.h"
#include "tensor/option_internal.h"

enum { DEFAULT_HISTORY = 16, MOST_MARGIN = 64 };

static const char buffer_name[] = "fp8_amax";

/* --- which layers ------------------------------------------------------------------------------ */

typedef struct fp8_list {
    trek_module **modules;
    int n, capacity;
    bool enabled;             /* list the layers that have it, not those that are to get it */
    int already;              /* layers that have it already */
    int64_t history;
} fp8_list;

/* Returns the weight of a module whose products can use 8 bits, or NULL if it is no such module. */
static trek_var *weight_of(const trek_module *module)
{
    if (module->own->klass == &trek_linear_class) {
        const trek_linear_layer *m = (const trek_linear_layer *)module;
        return m->in % TREK_FP8_MULTIPLE == 0 && m->out % TREK_FP8_MULTIPLE == 0 ? m->weight : NULL;
    }
    for (int k = 0; module->own->klass == &trek_multihead_attention_class && k < module->own->n_params; k++)
        if (strcmp(module->own->params[k].name, "in_proj_weight") == 0)
            return module->own->params[k].var->data->sizes[1] % TREK_FP8_MULTIPLE == 0 ? module->own->params[k].var : NULL;
    return NULL;
}

static trek_status list_module(const char *path, trek_module *module, void *arg)
{
    fp8_list *l = arg;
    const trek_fp8_layer *has = module->own->fp8;
    if (l->enabled ? !has : !has && !weight_of(module))
        return TREK_OK;
    l->already += has != NULL;
    if (!l->enabled && has && has->history != l->history)
        return trek_fail(TREK_ERR_STATE,
                         "fp8_enable: .history: \"%s\" already keeps %" PRId64 " steps, not %" PRId64
                         "; call trek_fp8_disable first",
                         path, has->history, l->history);
    if (!l->enabled && has)
        return TREK_OK;
    trek_status status = trek_array_grow(&l->modules, &l->capacity, l->n + 1, sizeof *l->modules);
    if (status == TREK_OK)
        l->modules[l->n++] = module;
    return status;
}

static void drop(trek_module *module)
{
    for (int k = 0; k < module->own->n_buffers; k++)
        if (module->own->buffers[k].var == module->own->fp8->record) {
            trek_module_drop_buffer(module, k);
            break;
        }
    trek_free(module->own->fp8);
    module->own->fp8 = NULL;
}

static trek_status add(trek_module *module, int64_t history)
{
    trek_fp8_layer *fp8 = trek_calloc(1, sizeof *fp8);
    if (!fp8)
        return trek_error_status();
    fp8->history = history;
    if (history > 0) {
        trek_tensor *zeros = trek_tensor_zeros(trek_dims(TREK_FP8_ROLES, history + 1), TREK_I32,
                                               trek_var_device(weight_of(module)));
        fp8->record = zeros ? trek_module_try_buffer(module, buffer_name, zeros) : NULL;
        if (!fp8->record) {
            trek_free(fp8);
            return trek_error_status();
        }
    }
    module->own->fp8 = fp8;
    return TREK_OK;
}

static trek_status set_margin(const char *path, trek_module *module, void *margin)
{
    (void)path;
    if (module->own->fp8)
        module->own->fp8->margin = *(const int *)margin;
    return TREK_OK;
}

trek_status trek_fp8_check(const trek_fp8_opts *o)
{
    if (o->history != TREK_OFF && (o->history < 0 || o->history > TREK_FP8_MOST_HISTORY))
        return trek_fail(TREK_ERR_ARGUMENT, "fp8_enable: .history: %" PRId64 "; must be 1 to %d, or TREK_OFF", o->history,
                         TREK_FP8_MOST_HISTORY);
    if (o->margin != TREK_ZERO && (o->margin < -MOST_MARGIN || o->margin > MOST_MARGIN))
        return trek_fail(TREK_ERR_ARGUMENT, "fp8_enable: .margin: %d; must be inside [-%d, %d]", o->margin, MOST_MARGIN,
                         MOST_MARGIN);
    return TREK_OK;
}

static int64_t history_of(const trek_fp8_opts *o)
{
    return o->history == TREK_OFF ? 0 : o->history ? o->history : DEFAULT_HISTORY;
}

bool trek_fp8_enabled(trek_module *module, const trek_fp8_opts *opts)
{
    fp8_list l = { .history = history_of(opts) };
    bool all = trek_walk_modules(module, 0, list_module, &l) == TREK_OK && l.n == 0 && l.already > 0;
    trek_free(l.modules);
    return all;
}

trek_status trek_fp8_enable(trek_module *module, const trek_fp8_opts *opts)
{
    trek_fp8_opts o = opts ? *opts : (trek_fp8_opts){ 0 };
    if (!module)
        return trek_fail_missing("fp8_enable", "module");
    if (trek_gone(module, "fp8_enable", "the module"))
        return TREK_ERR_STATE;
    o.margin = (int)trek_option_integer(o.margin, 0);
    trek_status status = trek_fp8_check(&o);
    if (status != TREK_OK)
        return status;
    fp8_list l = { .history = history_of(&o) };
    status = trek_walk_modules(module, 0, list_module, &l);
    if (status == TREK_OK && l.n == 0 && l.already == 0)
        status = trek_fail(TREK_ERR_ARGUMENT, "fp8_enable: module: the %s has no linear layer whose sizes are multiples of %d",
                           module->own->klass->name, TREK_FP8_MULTIPLE);
    int n = 0;
    while (status == TREK_OK && n < l.n && (status = add(l.modules[n], l.history)) == TREK_OK)
        n++;
    while (status != TREK_OK && n > 0)
        drop(l.modules[--n]);
    if (status == TREK_OK)
        trek_walk_modules(module, 0, set_margin, &o.margin);
    trek_free(l.modules);
    return status;
}

trek_status trek_fp8_disable(trek_module *module)
{
    fp8_list l = { .enabled = true };
    if (!module)
        return trek_fail_missing("fp8_disable", "module");
    if (trek_gone(module, "fp8_disable", "the module"))
        return TREK_ERR_STATE;
    trek_status status = trek_walk_modules(module, 0, list_module, &l);
    for (int k = 0; k < l.n && status == TREK_OK; k++)
        drop(l.modules[k]);
    trek_free(l.modules);
    return status;
}
